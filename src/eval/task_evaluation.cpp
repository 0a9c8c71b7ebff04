#include "eval/task_evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "data/prep/records.h"
#include "eval/answer_number.h"

namespace nmoe {
namespace {

double centre(double accuracy, double baseline) { return (accuracy - baseline) / (1.0 - baseline); }

int64_t num_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

int64_t num_right(const ItemOutcome& outcome) { return std::ranges::count(outcome.right, true); }

double credit_of(const ItemOutcome& outcome) {
  if (outcome.right.empty()) return outcome.correct ? 1.0 : 0.0;
  return static_cast<double>(num_right(outcome)) / static_cast<double>(outcome.right.size());
}

void add_outcome(TaskReport& report, ItemOutcome outcome) {
  ++report.items;
  report.correct += outcome.correct ? 1 : 0;
  const double credit = credit_of(outcome);
  report.credit += credit;
  report.credit_squares += credit * credit;
  report.strict += outcome.strict;
  report.flexible += outcome.flexible;
  for (size_t i = 0; i < report.correct_by.size(); ++i) report.correct_by[i] += outcome.correct_by[i] ? 1 : 0;
  for (const TextScore& score : outcome.result.scores) {
    report.nats += score.nats;
    report.scored_tokens += score.tokens;
    ++report.texts;
  }
  for (const WrittenAnswer& answer : outcome.result.answers) {
    ++report.texts;
    report.answer_tokens += answer.tokens;
    report.cut += answer.cut ? 1 : 0;
  }
  for (const int64_t length : outcome.result.lengths) report.tokens += length;
  report.scored_bytes += outcome.result.bytes;
  report.cropped += outcome.result.cropped;
  report.outcomes.push_back(std::move(outcome));
}

void add_groups(TaskReport& report) {
  if (report.task.group.empty()) return;
  std::map<std::string, GroupReport> groups;
  for (const ItemOutcome& outcome : report.outcomes) {
    GroupReport& group = groups[outcome.group];
    ++group.items;
    group.correct += outcome.correct ? 1 : 0;
  }
  for (auto& [name, group] : groups) {
    group.name = name;
    report.groups.push_back(group);
  }
}

}  // namespace

// What of a task evaluation goes by, whether it has rows or documents.
class TaskEvaluation::Items {
 public:
  virtual ~Items() = default;
  virtual int64_t size() const = 0;
  virtual const std::string& hash() const = 0;
  virtual EvalItem make(int64_t i) const = 0;  // any thread
  // Items of one are scored one after the other, since they may begin alike.
  virtual std::string group(int64_t i) const = 0;
  virtual ItemOutcome judge(const ItemResult& result) const = 0;
  // Of an item whose answers are written:
  virtual int64_t row(int64_t) const { return 0; }
  virtual const CodeTask* code(int64_t) const { return nullptr; }  // where they are programs
};

class TaskEvaluation::RowItems final : public Items {
 public:
  RowItems(const Task& task, const fs::path& dir, int64_t limit, const TokenRules& rules)
      : data_(task, dir, limit), rules_(rules) {}

  int64_t size() const override { return data_.size(); }
  const std::string& hash() const override { return data_.hash(); }
  EvalItem make(int64_t i) const override { return make_item(data_, i, rules_); }
  std::string group(int64_t i) const override { return data_.task().shots_file.empty() ? "" : data_.item(i).group; }
  int64_t row(int64_t i) const override { return data_.order()[static_cast<size_t>(i)]; }
  const CodeTask* code(int64_t i) const override { return data_.item(i).code ? &*data_.item(i).code : nullptr; }

  ItemOutcome judge(const ItemResult& result) const override {
    const TaskRow& row = data_.item(result.item);
    ItemOutcome outcome{.item = result.item,
                        .row = this->row(result.item),
                        .gold = row.gold,
                        .expected = row.expected,
                        .group = row.group,
                        .result = result};
    if (data_.task().is_generated()) {
      judge_answers(outcome);
      return outcome;
    }
    if (!data_.task().chooses()) {
      outcome.correct = result.scores.front().greedy;
      return outcome;
    }
    for (const ChoiceScore score : {ChoiceScore::kToken, ChoiceScore::kSum, ChoiceScore::kCharacter}) {
      const int64_t choice = choose(row, result, score);
      outcome.correct_by[static_cast<size_t>(score)] = choice == row.gold;
      if (score == data_.task().score) outcome.choice = choice;
    }
    outcome.correct = outcome.choice == row.gold;
    return outcome;
  }

 private:
  void judge_answers(ItemOutcome& outcome) const {
    const AnswerMetric metric = data_.task().generation.metric;
    for (const WrittenAnswer& answer : outcome.result.answers) {
      if (metric == AnswerMetric::kCode) {
        outcome.right.push_back(answer.fault.empty());
        continue;
      }
      const bool strict = strict_number(answer.text) == outcome.expected;
      const bool flexible = flexible_number(answer.text) == outcome.expected;
      outcome.strict += strict ? 1 : 0;
      outcome.flexible += flexible ? 1 : 0;
      outcome.right.push_back(metric == AnswerMetric::kStrict ? strict : flexible);
    }
    outcome.correct = outcome.right.front();
  }

  static int64_t choose(const TaskRow& row, const ItemResult& result, ChoiceScore score) {
    std::vector<double> values;
    for (size_t option = 0; option < result.scores.size(); ++option) {
      const TextScore& text = result.scores[option];
      double per = 1.0;
      if (score == ChoiceScore::kToken) per = static_cast<double>(text.tokens);
      if (score == ChoiceScore::kCharacter) {
        per = static_cast<double>(std::max<int64_t>(1, num_characters(row.answer(static_cast<int64_t>(option)))));
      }
      values.push_back(text.nats / per);
    }
    return std::ranges::min_element(values) - values.begin();  // the first of equals
  }

  TaskData data_;
  const TokenRules& rules_;
};

class TaskEvaluation::DocumentItems final : public Items {
 public:
  DocumentItems(const Task& task, const fs::path& dir, int64_t limit, const TokenRules& rules) {
    const fs::path path = find_data_file(dir, task.file);
    const RecordOptions options{.text_field = task.prompt.substr(1, task.prompt.size() - 2)};
    const auto reader = open_records(path, options);
    Sha256 hash;
    hash.update(task.prompt + "\n");
    int64_t documents = 0;
    for (Record record; (limit == 0 || documents < limit) && reader->next(record); ++documents) {
      if (!record.fault.empty()) throw bad_record_error(path, options, record, /*allowed=*/0);
      hash.update(fmt::format("{}\n", record.text.size()));
      hash.update(record.text);
      for (EvalItem& item : make_text_items(record.text, rules)) {
        items_.push_back(std::move(item));
        documents_.push_back(documents);
      }
    }
    hash_ = hash.finish();
    if (items_.empty()) {
      throw runtime_error(fmt::format("'{}' has no tokens to score", path.string()), "name a file with text in it");
    }
  }

  int64_t size() const override { return std::ssize(items_); }
  const std::string& hash() const override { return hash_; }
  EvalItem make(int64_t i) const override { return items_[static_cast<size_t>(i)]; }
  std::string group(int64_t) const override { return ""; }
  ItemOutcome judge(const ItemResult& result) const override {
    return {.item = result.item, .row = documents_[static_cast<size_t>(result.item)], .result = result};
  }

 private:
  std::vector<EvalItem> items_;
  std::vector<int64_t> documents_;  // which document each is of
  std::string hash_;
};

TaskEvaluation::TaskEvaluation(const std::string& suite, const Task& task, const fs::path& dir, int64_t limit,
                               const TokenRules& rules)
    : suite_(suite), task_(task) {
  if (task.kind == TaskKind::kText) {
    items_ = std::make_unique<DocumentItems>(task, dir, limit, rules);
  } else {
    items_ = std::make_unique<RowItems>(task, dir, limit, rules);
  }
}

TaskEvaluation::~TaskEvaluation() = default;
TaskEvaluation::TaskEvaluation(TaskEvaluation&&) noexcept = default;

const std::string& TaskEvaluation::hash() const { return items_->hash(); }

int64_t TaskEvaluation::size() const { return items_->size(); }

void TaskEvaluation::make_items(const ItemResults& done, ThreadPool& pool) {
  pending_.clear();
  for (int64_t i = 0; i < size(); ++i) {
    if (!done.contains(i)) pending_.push_back(i);
  }
  made_.assign(pending_.size(), {});
  pool.parallel_for(std::ssize(pending_), [&](int64_t i, int) {
    made_[static_cast<size_t>(i)] = items_->make(pending_[static_cast<size_t>(i)]);
  });
  put_in_order();
}

// The group with the longest text first, and so within groups.
void TaskEvaluation::put_in_order() {
  std::vector<int64_t> longest(made_.size());
  std::vector<std::string> groups(made_.size());
  std::map<std::string, int64_t> longest_of;
  for (size_t i = 0; i < made_.size(); ++i) {
    for (const ScoredText& text : made_[i].texts) longest[i] = std::max(longest[i], std::ssize(text.tokens));
    groups[i] = items_->group(pending_[i]);
    longest_of[groups[i]] = std::max(longest_of[groups[i]], longest[i]);
  }
  std::vector<size_t> order(made_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    const int64_t of_a = longest_of[groups[a]], of_b = longest_of[groups[b]];
    return std::tie(of_b, groups[a], longest[b], a) < std::tie(of_a, groups[b], longest[a], b);
  });
  std::vector<int64_t> pending;
  std::vector<EvalItem> made;
  for (const size_t i : order) {
    pending.push_back(pending_[i]);
    made.push_back(std::move(made_[i]));
  }
  pending_ = std::move(pending);
  made_ = std::move(made);
}

void TaskEvaluation::score(Scorer& scorer, const std::function<void(ItemResult result)>& scored) const {
  std::vector<const std::vector<ScoredText>*> groups;
  for (const EvalItem& item : made_) groups.push_back(&item.texts);
  scorer.score(groups, [&](size_t group, std::span<const TextScore> scores) {
    const EvalItem& item = made_[group];
    ItemResult result{.item = pending_[group],
                      .scores = {scores.begin(), scores.end()},
                      .lengths = {},
                      .cropped = item.cropped,
                      .bytes = item.bytes};
    for (const ScoredText& text : item.texts) result.lengths.push_back(std::ssize(text.tokens));
    for (const TextScore& score : scores) {
      if (std::isfinite(score.nats)) continue;
      throw runtime_error(fmt::format("task {}, item {}: a loss is {}", name(), result.item, score.nats),
                          "see what the model's weights are: n checkpoint verify, n generate");
    }
    scored(std::move(result));
  });
}

void TaskEvaluation::generate(const Generation& generation,
                              const std::function<void(ItemResult result)>& scored) const {
  constexpr uint64_t kSeedsOfARow = 1 << 16;
  std::vector<AnswerPrompt> prompts;
  for (size_t i = 0; i < made_.size(); ++i) {
    const auto row = static_cast<uint64_t>(items_->row(pending_[i]));
    prompts.push_back({.tokens = &made_[i].texts.front().tokens, .seed = row * kSeedsOfARow});
  }
  generation.writer.write(prompts, task_.generation, [&](std::vector<AnswerWriter::Written> written) {
    const int64_t samples = task_.generation.samples;
    if (task_.generation.metric == AnswerMetric::kCode) {
      NMOE_CHECK(generation.sandbox != nullptr, "task {} without a sandbox", name());
      generation.pool.parallel_for(std::ssize(written) * samples, [&](int64_t i, int) {
        AnswerWriter::Written& item = written[static_cast<size_t>(i / samples)];
        WrittenAnswer& answer = item.answers[static_cast<size_t>(i % samples)];
        const CodeVerdict verdict =
            judge_completion(*generation.sandbox, *items_->code(pending_[item.prompt]), answer.text);
        if (!verdict.passed) answer.fault = verdict.why.empty() ? "not passed" : as_utf8(verdict.why);
      });
    }
    for (AnswerWriter::Written& item : written) {
      const EvalItem& made = made_[item.prompt];
      scored({.item = pending_[item.prompt],
              .scores = {},
              .lengths = {std::ssize(made.texts.front().tokens)},
              .cropped = made.cropped,
              .answers = std::move(item.answers)});
    }
  });
}

TaskReport TaskEvaluation::report(const ItemResults& results) const {
  TaskReport report{.suite = suite_, .task = task_};
  for (const auto& [item, result] : results) add_outcome(report, items_->judge(result));
  add_groups(report);
  return report;
}

double TaskReport::accuracy() const { return credit / static_cast<double>(items); }

double TaskReport::accuracy_by(ChoiceScore score) const {
  return static_cast<double>(correct_by[static_cast<size_t>(score)]) / static_cast<double>(items);
}

double TaskReport::accuracy_by(AnswerMetric metric) const {
  const int64_t right = metric == AnswerMetric::kStrict ? strict : flexible;
  return static_cast<double>(right) / static_cast<double>(items * task.generation.samples);
}

double TaskReport::pass_at(int64_t k) const {
  double sum = 0.0;
  for (const ItemOutcome& outcome : outcomes) {
    sum += pass_at_k(std::ssize(outcome.right), num_right(outcome), k);
  }
  return sum / static_cast<double>(items);
}

double TaskReport::standard_error() const {
  if (items < 2) return 0.0;
  const double variance = credit_squares / static_cast<double>(items) - accuracy() * accuracy();
  return std::sqrt(std::max(0.0, variance) / static_cast<double>(items - 1));
}

double TaskReport::centred() const { return centre(accuracy(), task.baseline); }

double TaskReport::centred_v2() const { return centre(accuracy(), task.baseline_v2); }

double TaskReport::macro_accuracy() const {
  double sum = 0.0;
  for (const GroupReport& group : groups) sum += static_cast<double>(group.correct) / static_cast<double>(group.items);
  return sum / static_cast<double>(groups.size());
}

double TaskReport::bits_per_byte() const { return nats / (std::numbers::ln2 * static_cast<double>(scored_bytes)); }

}  // namespace nmoe
