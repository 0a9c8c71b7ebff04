// Converts files of text, JSON and Parquet to a dataset: OUT/train, OUT/valid (data/shards/shard.h) and
// OUT/tokenizer.json, OUT/report.json (what was read, kept and dropped), OUT/dropped.jsonl (each document that was
// dropped, and why) and, of conversations, OUT/chat_template.jinja (how they are written).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/prep/conversation.h"
#include "data/prep/filters.h"
#include "data/prep/records.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {

struct PrepProgress {
  int64_t bytes = 0;        // of input files processed
  int64_t total_bytes = 0;  // of all input files
  int64_t start_bytes = 0;  // of `bytes`, those processed by an interrupted preparation
  int64_t text_bytes = 0;   // of documents, including dropped ones, since this process began
  int64_t documents = 0;    // kept
  int64_t tokens = 0;
};

struct PrepOptions {
  // Files, folders, globs: data/prep/inputs.h.
  std::vector<std::string> inputs = {};
  // Files for validation; one that `inputs` names too is used for validation only.
  std::vector<std::string> valid_inputs = {};
  // In [0, 1): share of documents for validation, chosen by a hash of the text.
  double valid_fraction = 0.0;
  // In [0, 1): share of every file for validation, its tail (RecordOptions::tail). All files must be plain text, and
  // each one document.
  double valid_tail = 0.0;
  // Where documents are within the files. With a prompt field, a document is its prompt followed by its text, each
  // encoded by itself, and the shards get masks that keep the prompt out of the loss.
  RecordOptions records = {};
  // With a messages field: makes the encoder that turns messages into ids. The shards then get masks that limit the
  // loss to the assistant's messages.
  std::function<std::shared_ptr<const ConversationEncoder>(std::shared_ptr<const Tokenizer>)> conversations = {};
  FilterOptions filters = {};
  // Drop documents that equal an earlier one.
  bool dedup = false;
  // Drop documents that resemble an earlier kept one by this much or more (data/prep/dedup.h), in (0, 1].
  std::optional<double> near_dedup = {};
  // Number of unusable records (Record::fault) to skip. One more is an error.
  int64_t skip_bad = 0;
  // "bytes" or a tokenizer's file: data/tokenizer/tokenizer.h.
  std::string tokenizer = "bytes";
  // Goes into the shards' names: letters, digits, '.', '_' and '-'.
  std::string dataset = "corpus";
  std::filesystem::path out = {};
  int64_t tokens_per_shard = 500'000'000;
  int threads = 0;  // 0: one per available CPU
  // Between two checkpoints: the most work that is lost when the process is killed.
  double checkpoint_seconds = 10.0;
  // Replace the dataset that `out` holds, and forget an unfinished preparation with other options.
  bool force = false;
  // Called from time to time, on the caller's thread.
  std::function<void(const PrepProgress&)> progress = {};
};

struct SplitReport {
  int64_t documents = 0;
  int64_t tokens = 0;  // end-of-sequence ids included
  int64_t bytes = 0;   // of text
  int64_t shards = 0;
};

struct DropCount {
  int64_t records = 0;
  int64_t bytes = 0;  // of text
};

// Conversations that became one document for each reply, and how many those are (chat/conversation_encoder.h).
struct ByReplyCount {
  int64_t records = 0;
  int64_t documents = 0;
};

struct PrepReport {
  SplitReport train;
  SplitReport valid;  // all 0 if no validation split was requested; then none is written
  int64_t records = 0;
  // By reason: "bad record", "empty", those of filters.h, "duplicate", "near duplicate".
  std::map<std::string, DropCount> dropped;
  ByReplyCount by_reply;

  std::vector<std::filesystem::path> skipped_files;  // in folders, because of their extension (data/prep/inputs.h)

  std::string conversation_note;  // ConversationEncoder::note

  // Nothing was done, since an earlier call with the same arguments made the dataset. What follows is then 0.
  bool was_there = false;
  // What follows is of this process only, if it continued the work of another:
  int64_t resumed_records = 0;  // records that the other had processed
  int64_t text_bytes = 0;
  double seconds = 0;
  // Summed over threads.
  double encode_seconds = 0;
  int64_t encoded_bytes = 0;
  double near_dedup_seconds = 0;
  int64_t near_dedup_bytes = 0;
};

// Reads every record, drops what the filters say, encodes the rest and writes the splits. Plain text is taken byte for
// byte; empty documents are dropped. The order is that of the inputs, and the files written are the same bytes for any
// number of threads and however often the work was interrupted.
//
// Documents pass, in this order: the filters on their text, exact deduplication, the limits in tokens, near
// deduplication; the first that drops it is the reason given.
//
// A validation split comes from one of `valid_inputs`, `valid_fraction` and `valid_tail`. With a fraction, equal
// documents land in the same split.
//
// Every `checkpoint_seconds` all work is made durable in OUT/.prep and under temporary names. The next call with the
// same options (except for threads, skip_bad, checkpoint_seconds and force) and unchanged input files continues from
// there; with other options it is an error unless `force`. After completion, the same call only returns the report: a
// preparation that was killed at the very end, too, can simply be repeated.
//
// Memory: a few batches of documents of some MB, and the largest document several times over; in addition 32 to 64
// bytes per document for `dedup`, and about 700 for `near_dedup`.
//
// Error (usage) on options that cannot be met: nothing to read, an empty split, a document longer
// than a shard, another dataset in `out` without `force`; (runtime) on more bad records than allowed, unreadable
// files and full disks. A failure before the first checkpoint leaves `out` as it was; after it, the unfinished work
// stays for the next call.
PrepReport prepare_dataset(const PrepOptions& options);

}  // namespace nmoe
