#include "eval/evaluate.h"

#include <chrono>
#include <cmath>

namespace nmoe {
namespace {

using Clock = std::chrono::steady_clock;

// Returns how many tokens were computed.
int64_t run_task(const TaskEvaluation& task, bool is_generated, const EvalModels& models, ThreadPool& pool,
                 const std::function<void(ItemResult result)>& scored) {
  if (!task.has_pending()) return 0;
  if (is_generated) {
    AnswerWriter writer(models.engine(), models.stop_ids);
    task.generate({.writer = writer, .sandbox = models.sandbox, .pool = pool}, scored);
    return writer.computed_tokens();
  }
  Scorer& scorer = models.scorer();
  const int64_t before = scorer.computed_tokens();
  task.score(scorer, scored);
  return scorer.computed_tokens() - before;
}

TaskReport evaluate_task(TaskEvaluation& task, bool is_generated, const EvalModels& models, const EvalOptions& options,
                         ThreadPool& pool, EvalJournal* journal) {
  const auto begin = Clock::now();
  const std::string name = task.name();
  ItemResults results;
  if (journal != nullptr) results = journal->begin_task(name, task.hash());
  const int64_t resumed = std::ssize(results);
  task.make_items(results, pool);
  const int64_t computed = run_task(task, is_generated, models, pool, [&](ItemResult result) {
    if (journal != nullptr) journal->add(name, result);
    const int64_t item = result.item;
    results.emplace(item, std::move(result));
    if (options.progress) options.progress(name, std::ssize(results), task.size());
  });
  TaskReport report = task.report(results);
  report.resumed = resumed;
  report.computed_tokens = computed;
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

}  // namespace

SuiteMean mean_of(const TaskSuite& suite, std::span<const TaskReport> tasks) {
  SuiteMean mean{.suite = suite.name, .name = suite.mean};
  const auto count = static_cast<double>(tasks.size());
  double variance = 0.0, variance_v2 = 0.0;
  for (const TaskReport& task : tasks) {
    mean.value += task.centred() / count;
    mean.value_v2 += task.centred_v2() / count;
    variance += std::pow(task.standard_error() / (1.0 - task.task.baseline), 2);
    variance_v2 += std::pow(task.standard_error() / (1.0 - task.task.baseline_v2), 2);
  }
  mean.standard_error = std::sqrt(variance) / count;
  mean.standard_error_v2 = std::sqrt(variance_v2) / count;
  return mean;
}

EvalReport evaluate(const EvalModels& models, const TokenRules& rules, const EvalOptions& options, ThreadPool& pool,
                    EvalJournal* journal) {
  EvalReport report;
  for (const TaskSuite& suite : options.suites) {
    const size_t first = report.tasks.size();
    for (const Task& task : suite.tasks) {
      TaskEvaluation evaluation(suite.name, task, options.data_dir, options.limit, rules);
      report.tasks.push_back(evaluate_task(evaluation, task.is_generated(), models, options, pool, journal));
    }
    if (!suite.mean.empty()) report.means.push_back(mean_of(suite, std::span(report.tasks).subspan(first)));
  }
  return report;
}

}  // namespace nmoe
