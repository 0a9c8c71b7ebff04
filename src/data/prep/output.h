// What a preparation writes, and how far it has got: the durable half of prep.cpp.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/prep/conversation.h"
#include "data/prep/dedup.h"
#include "data/prep/journal.h"
#include "data/prep/options.h"
#include "data/prep/record.h"
#include "data/prep/report.h"
#include "data/shards/shard.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {

enum class DatasetSplit { kTrain, kValid, kByHash };

// A record on its way to a shard.
struct Document {
  Record record;
  int64_t file = 0;
  DatasetSplit split = DatasetSplit::kTrain;  // decided by the time it is written
  std::optional<Verdict> dropped;
  std::optional<Digest> digest;  // when it is the first with it
  std::unique_ptr<Signature> signature;
  // What goes to the shards, masks where they have some: one, of the prompt and then of the text, or a conversation's.
  std::vector<EncodedDocument> encoded;

  int64_t text_bytes() const { return static_cast<int64_t>(record.prompt.size() + record.text.size()); }
};

// Documents in the order of the input, and where in it the next one begins.
struct DocumentBatch {
  std::vector<Document> documents;
  int64_t end_file = 0;
  int64_t end_record = 0;
  int64_t file_bytes = 0;  // of the input files' sizes, up to here
};

struct InputFile {
  fs::path path;
  DatasetSplit split = DatasetSplit::kTrain;
  int64_t bytes = 0;
};

// The folder a preparation writes to. Made, if need be, by the constructor, and removed by the destructor if nothing
// came into it. Takes OUT/.prep for this process alone.
class OutputFolder {
 public:
  explicit OutputFolder(const fs::path& path);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const fs::path& path() const { return path_; }
  fs::path journal() const { return work_ / "journal.json"; }
  fs::path dropped() const { return work_ / "dropped.jsonl"; }
  fs::path digests() const { return work_ / "digests"; }
  fs::path signatures() const { return work_ / "signatures"; }

  // Removes all of an unfinished preparation.
  void begin_anew() const;
  // Nothing of the work remains to be done.
  void finish() const;

 private:
  fs::path path_;
  fs::path work_;
  bool made_;
  std::optional<FileLock> lock_;
};

// The report of the dataset that a finished preparation with these settings has left in `out`; nothing when there is
// none, or another.
std::optional<PrepReport> finished_report(const fs::path& out, const PrepSettings& settings);

// Writes batches in their order. One thread at a time.
class Output {
 public:
  // `encoder` is null where records are no conversations. `state` is that of the journal, or nothing for a fresh start.
  // All but the state must outlive it.
  Output(const OutputFolder& folder, const PrepOptions& options, const Tokenizer& tokenizer,
         const ConversationEncoder* encoder, const std::vector<InputFile>& inputs, const PrepSettings& settings,
         const std::optional<PrepState>& state);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Where it stands.
  const PrepState& state() const { return state_; }
  // Whether there is a checkpoint for another process to go on from.
  bool outlives_failure() const { return journaled_; }

  void write(const DocumentBatch& batch);

  // After the last batch: closes everything, replaces what was in the folder, gives the files their names. Error
  // (usage) when a split is empty.
  PrepReport commit();

 private:
  // The files beside the shards, with what is in them and what is still to be written.
  struct WorkFile {
    std::optional<FileWriter> file;
    std::string pending;
    void open(const fs::path& path, bool old, uint64_t bytes);
    uint64_t sync();  // returns its size
  };
  void checkpoint();
  void close();
  void list_dropped(const Document& document);
  std::string place_of_document(const Document& document) const;
  std::string report_text() const;

  const OutputFolder& folder_;
  const PrepOptions& options_;
  const Tokenizer& tokenizer_;
  const ConversationEncoder* encoder_;
  const std::vector<InputFile>& inputs_;
  const PrepSettings& settings_;
  PrepState state_;
  bool journaled_;                    // there is a journal: the work outlives a failure
  std::optional<SplitWriter> train_;  // set from the constructor on
  std::optional<SplitWriter> valid_;
  WorkFile dropped_;
  WorkFile digests_;
  WorkFile signatures_;
  std::chrono::steady_clock::time_point last_checkpoint_ = std::chrono::steady_clock::now();
};

}  // namespace nmoe
