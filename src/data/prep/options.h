// What a preparation of a dataset is asked for, and how it tells how far it is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/prep/conversation.h"
#include "data/prep/filters.h"
#include "data/prep/record.h"
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

}  // namespace nmoe
