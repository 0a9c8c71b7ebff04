// Evaluates suites of tasks with a model, and reports the results.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "eval/task_evaluation.h"

namespace nmoe {

// The mean of the centred accuracies of a suite that has a name for one.
struct SuiteMean {
  std::string suite;
  std::string name;
  double value = 0.0, standard_error = 0.0;
  double value_v2 = 0.0, standard_error_v2 = 0.0;
};

SuiteMean mean_of(const TaskSuite& suite, std::span<const TaskReport> tasks);

struct EvalReport {
  std::vector<TaskReport> tasks;
  std::vector<SuiteMean> means;
};

struct EvalOptions {
  std::vector<TaskSuite> suites;
  std::filesystem::path data_dir;
  int64_t limit = 0;  // items of a task; 0: all
  // Called as items of the named task are done, with how many of all.
  std::function<void(const std::string& task, int64_t done, int64_t total)> progress;
};

// What a task asks; each is called where items of it are to be done, and may end what the other gave.
struct EvalModels {
  std::function<Scorer&()> scorer;
  std::function<InferenceEngine&()> engine{};  // where answers are written
  std::vector<int32_t> stop_ids{};             // that end these beside the tokenizer's eos_id
  const Sandbox* sandbox = nullptr;            // where they are programs
};

// Evaluates what is not in the journal, if there is one. Errors: TaskEvaluation's.
EvalReport evaluate(const EvalModels& models, const TokenRules& rules, const EvalOptions& options, ThreadPool& pool,
                    EvalJournal* journal);

// As JSON, without the items.
std::string report_json(const EvalReport& report);
// One line for each item, in their order: {"task", "item", "row", "gold", "choice", "correct", "nats", "tokens",
// "greedy", "bytes", "cropped"}, without "gold" and "choice" where nothing is chosen, and "correct" of documents; of
// written answers "expected", "answers", "right", "faults" instead of what is scored.
std::string item_lines(const EvalReport& report);
// Tags and values for a run's metrics: eval/core/piqa/{acc, centered, n} (bpb of documents), eval/CORE, eval/CORE_v2;
// of written answers also pass_at_10 and such, flexible and, with guesses, acceptance_length, accepted_1 and so on.
std::vector<std::pair<std::string, double>> report_metrics(const EvalReport& report);

// The means, "CORE 0.1234 +- 0.0056", or without any the tasks, "core/piqa 61.2 %, mine/text 0.9876 bits per byte".
std::string short_report(const EvalReport& report);

}  // namespace nmoe
