// Evaluates one task with a model: its items as tokens, their scores, and the results.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "eval/answer_writer.h"
#include "eval/eval_item.h"
#include "eval/journal.h"
#include "eval/scorer.h"
#include "eval/task.h"
#include "sandbox/sandbox.h"

namespace nmoe {

// An item's outcome.
struct ItemOutcome {
  int64_t item = 0;
  int64_t row = 0;                                  // of the task's file, from 0; of a document
  int64_t gold = 0;                                 // of choices
  int64_t choice = 0;                               // by the task's own score
  bool correct = false;                             // of several answers, the first
  std::array<bool, kNumChoiceScores> correct_by{};  // by each score
  std::vector<bool> right;                          // of each written answer, by the task's metric
  int64_t strict = 0, flexible = 0;                 // of written numbers, how many are right by each metric
  std::string expected;                             // number
  std::string group;
  ItemResult result;
};

struct GroupReport {
  std::string name;
  int64_t items = 0;
  int64_t correct = 0;
};

struct TaskReport {
  std::string suite;
  Task task;
  int64_t items = 0;
  int64_t correct = 0;
  std::array<int64_t, kNumChoiceScores> correct_by{};  // of choices, by each score
  double credit = 0.0;               // the sum over items: 1 for a right one, or the share of its answers that are
  double credit_squares = 0.0;       // same, of the squares
  int64_t strict = 0, flexible = 0;  // written numbers that are right by each metric
  std::vector<GroupReport> groups;   // sorted by name; empty without Task::group
  double nats = 0.0;                 // of all scored tokens of all texts
  int64_t scored_tokens = 0;
  int64_t scored_bytes = 0;
  int64_t texts = 0;                  // or answers
  int64_t tokens = 0;                 // of all texts, or prompts
  int64_t answer_tokens = 0;          // written
  int64_t cut = 0;                    // answers that have as many tokens as they may
  int64_t cropped = 0;                // texts
  int64_t resumed = 0;                // items that were in the journal
  int64_t computed_tokens = 0;        // in this call
  DraftCounts drafts;                 // of answers that were written in this call
  double seconds = 0.0;               // of this call
  std::vector<ItemOutcome> outcomes;  // by item

  std::string name() const { return suite + "/" + task.name; }
  bool has_accuracy() const { return task.kind != TaskKind::kText; }
  double accuracy() const;
  double accuracy_by(ChoiceScore score) const;
  double accuracy_by(AnswerMetric metric) const;  // of written numbers: strict or flexible
  // The unbiased estimate that one of k <= generation.samples answers to an item is right (sandbox/code_task.h).
  double pass_at(int64_t k) const;
  // Of the accuracy: the items' standard deviation / sqrt(n), which is sqrt(p (1 - p) / (n - 1)) where each is right or
  // wrong; 0 for one item.
  double standard_error() const;
  double centred() const;  // (accuracy - baseline) / (1 - baseline)
  double centred_v2() const;
  double macro_accuracy() const;  // the mean of the groups'
  double bits_per_byte() const;   // nats / (ln 2 * bytes), of documents
};

// What answers are written by and judged in.
struct Generation {
  AnswerWriter& writer;
  const Sandbox* sandbox = nullptr;  // where they are programs
  ThreadPool& pool;                  // judges them
};

class TaskEvaluation {
 public:
  // Reads the data: at most `limit` rows or documents, 0: all. `rules` outlive this. Errors: TaskData's.
  TaskEvaluation(const std::string& suite, const Task& task, const std::filesystem::path& dir, int64_t limit,
                 const TokenRules& rules);
  ~TaskEvaluation();
  TaskEvaluation(TaskEvaluation&&) noexcept;

  std::string name() const { return suite_ + "/" + task_.name; }
  const std::string& hash() const;  // of all that decides what the items are
  int64_t size() const;

  // Tokenizes the items that are not in `done`. Errors: make_item's.
  void make_items(const ItemResults& done, ThreadPool& pool);
  bool has_pending() const { return !pending_.empty(); }
  // Scores those, texts longest first and those of a group one after the other; may be called again. Error (runtime)
  // where a loss is not finite.
  void score(Scorer& scorer, const std::function<void(ItemResult result)>& scored) const;
  // The same of a task whose answers are written. Errors: InferenceEngine's, Sandbox::run's.
  void generate(const Generation& generation, const std::function<void(ItemResult result)>& scored) const;
  TaskReport report(const ItemResults& results) const;

 private:
  class Items;
  class RowItems;
  class DocumentItems;
  void put_in_order();

  std::string suite_;
  Task task_;
  std::unique_ptr<Items> items_;
  std::vector<int64_t> pending_;  // in the order in which they are scored
  std::vector<EvalItem> made_;    // of each
};

}  // namespace nmoe
