#include "eval/evaluate.h"

#include <chrono>
#include <cmath>
#include <future>

namespace nmoe {
namespace {

using Clock = std::chrono::steady_clock;

struct TaskWork {
  int64_t computed_tokens = 0;
  DraftCounts drafts = {};
};

TaskWork run_task(const TaskEvaluation& task, bool is_generated, const EvalModels& models, ThreadPool& pool,
                  const std::function<void(ItemResult result)>& scored) {
  if (!task.has_pending()) return {};
  if (is_generated) {
    InferenceEngine& engine = models.engine();
    const DraftCounts before = engine.load().drafts;
    AnswerWriter writer(engine, models.stop_ids);
    task.generate({.writer = writer, .sandbox = models.sandbox, .pool = pool}, scored);
    return {.computed_tokens = writer.computed_tokens(), .drafts = engine.load().drafts.since(before)};
  }
  Scorer& scorer = models.scorer();
  const int64_t before = scorer.computed_tokens();
  task.score(scorer, scored);
  return {.computed_tokens = scorer.computed_tokens() - before};
}

// A task whose items are made.
struct ReadyTask {
  TaskEvaluation task;
  ItemResults results;  // that the journal had
};

TaskReport evaluate_task(ReadyTask ready, bool is_generated, const EvalModels& models, const EvalOptions& options,
                         ThreadPool& pool, EvalJournal* journal) {
  const TaskEvaluation& task = ready.task;
  ItemResults& results = ready.results;
  const std::string name = task.name();
  const int64_t resumed = std::ssize(results);
  const TaskWork work = run_task(task, is_generated, models, pool, [&](ItemResult result) {
    if (journal != nullptr) journal->add(name, result);
    const int64_t item = result.item;
    results.emplace(item, std::move(result));
    if (options.progress) options.progress(name, std::ssize(results), task.size());
  });
  TaskReport report = task.report(results);
  report.resumed = resumed;
  report.computed_tokens = work.computed_tokens;
  report.drafts = work.drafts;
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
  struct Place {
    const TaskSuite* suite;
    const Task* task;
  };
  std::vector<Place> places;
  for (const TaskSuite& suite : options.suites) {
    for (const Task& task : suite.tasks) places.push_back({&suite, &task});
  }
  // While a task is scored, which leaves most of the machine free, the next one's items are made; a task whose answers
  // are written uses the pool itself.
  const auto start = [&](size_t at, std::launch policy) {
    return std::async(policy, [&, place = places[at]] {
      ReadyTask ready{TaskEvaluation(place.suite->name, *place.task, options.data_dir, options.limit, rules), {}};
      if (journal != nullptr) ready.results = journal->begin_task(ready.task.name(), ready.task.hash());
      ready.task.make_items(ready.results, pool);
      return ready;
    });
  };
  EvalReport report;
  std::future<ReadyTask> next;
  if (!places.empty()) next = start(0, std::launch::deferred);
  size_t first_of_suite = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto begin = Clock::now();
    const auto& [suite, task] = places[i];
    ReadyTask ready = next.get();
    const bool pool_is_free = !task->is_generated();
    if (i + 1 < places.size()) next = start(i + 1, pool_is_free ? std::launch::async : std::launch::deferred);
    report.tasks.push_back(evaluate_task(std::move(ready), task->is_generated(), models, options, pool, journal));
    report.tasks.back().seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (i + 1 < places.size() && places[i + 1].suite == suite) continue;
    if (!suite->mean.empty()) report.means.push_back(mean_of(*suite, std::span(report.tasks).subspan(first_of_suite)));
    first_of_suite = report.tasks.size();
  }
  return report;
}

}  // namespace nmoe
