// Scored items on disk, so that an evaluation that was killed continues after the last of them.
//
// A file of JSON lines. The first identifies the evaluation; {"task", "hash"} identifies a task's items; then
//   {"task": "core/piqa", "item": 7, "nats": [31.2, 30.9], "tokens": [9, 8], "greedy": [false, false],
//    "length": [80, 79], "cropped": 0, "bytes": 71}
// or, of written answers, {"task", "item", "answers": [{"text", "tokens", "cut", "fault"}], "length", "cropped"}
// for each item in the order in which they were finished. Numbers read back as the same bits. An incomplete last line
// was being written when the process ended, and is dropped.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "eval/scorer.h"

namespace nmoe {

// An answer that the model wrote.
struct WrittenAnswer {
  std::string text;    // UTF-8
  int64_t tokens = 0;  // without what ended it
  bool cut = false;    // it has as many tokens as it may
  std::string fault;   // of a program: why it has not passed, "" where it has
  bool operator==(const WrittenAnswer&) const = default;
};

// The result of an item: its texts' scores, or its written answers.
struct ItemResult {
  int64_t item = 0;
  std::vector<TextScore> scores;  // of each text
  std::vector<int64_t> lengths;   // tokens of each text
  int64_t cropped = 0;            // of the texts, how many
  int64_t bytes = 0;              // that the scored tokens stand for
  std::vector<WrittenAnswer> answers{};
  bool operator==(const ItemResult&) const = default;
};
using ItemResults = std::map<int64_t, ItemResult>;  // by item

// Threads: any.
class EvalJournal {
 public:
  // In the folder `dir`, which is made. `identity` is all that decides what an item gets but the task itself. Errors:
  // (usage) where the journal there is of another identity; (runtime) where another process writes it, or it is
  // damaged.
  EvalJournal(const fs::path& dir, const std::string& identity);

  // What was done of a task before. Error (usage) where its items were others.
  const ItemResults& begin_task(const std::string& task, const std::string& hash);
  void add(const std::string& task, const ItemResult& result);

 private:
  struct TaskEntry {
    std::string hash;
    ItemResults results;
  };
  void read(const std::string& text, const std::string& identity);
  void write_line(const std::string& line);

  std::mutex mutex_;
  fs::path path_;
  FileLock lock_;
  std::map<std::string, TaskEntry> tasks_;
  std::optional<FileWriter> file_;
};

}  // namespace nmoe
