// A task's rows, and the texts made from them.
//
// The order and the drawn shots are those of nanochat's core_eval.py: rows are shuffled by random.Random(1337), then
// cut to a limit; item i has the shots random.Random(1234 + i).sample over the other items.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/task.h"
#include "sandbox/code_task.h"

namespace nmoe {

// One row: option j is prompts[j], the delimiter and answers[j], where a list of one is the same for all options.
struct TaskRow {
  std::vector<std::string> prompts;
  std::vector<std::string> answers;
  int64_t gold = 0;
  std::string header;
  std::string group;
  std::string expected;          // of a written answer that is a number
  std::optional<CodeTask> code;  // of one that is a program

  int64_t num_options() const { return static_cast<int64_t>(std::max(prompts.size(), answers.size())); }
  const std::string& prompt(int64_t option) const { return prompts[prompts.size() == 1 ? 0 : size_t(option)]; }
  const std::string& answer(int64_t option) const { return answers[answers.size() == 1 ? 0 : size_t(option)]; }
};

// `text` without white space at both ends: what Python's str.strip() takes away. Valid UTF-8.
std::string_view strip(std::string_view text);

// A task's data file: `file` below `dir`, or beside it the same with .zst, .gz, or .parquet for its ending. Error
// (usage) when there is none.
std::filesystem::path find_data_file(const std::filesystem::path& dir, const std::string& file);

// Of a task whose kind is not kText.
class TaskData {
 public:
  // Of at most `limit` items, 0: all. Errors (runtime) that name file and line for a row without what the task needs;
  // (usage) where there are too few items for its shots.
  TaskData(Task task, const std::filesystem::path& dir, int64_t limit);

  const Task& task() const { return task_; }
  // Over task and rows: what is scored.
  const std::string& hash() const { return hash_; }
  int64_t size() const { return static_cast<int64_t>(order_.size()); }
  const TaskRow& item(int64_t i) const { return rows_[static_cast<size_t>(order_[static_cast<size_t>(i)])]; }
  const std::vector<int64_t>& order() const { return order_; }  // of the file's rows, from 0

  // Indices of items, or of the rows of shots_file.
  std::vector<int64_t> shots_of(int64_t i) const;
  // What is scored of an item: one text for each option; for language modelling the text without its answer and the
  // one with it; of answers that are written the prompt.
  std::vector<std::string> texts_of(int64_t i) const;

 private:
  std::string text_of(const TaskRow& row, int64_t option) const;

  Task task_;
  std::vector<TaskRow> rows_;
  std::vector<int64_t> order_;
  std::vector<TaskRow> shot_rows_;                           // of shots_file
  std::map<std::string, std::vector<int64_t>> group_shots_;  // of these, by group
  std::string hash_;
};

}  // namespace nmoe
