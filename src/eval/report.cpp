// What evaluate() found, as JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json.h"
#include "eval/evaluate.h"
#include "track/tag.h"
#include "track/tags/evaluation.h"

namespace nmoe {
namespace {

// By place in a step, of those that were reached.
std::vector<double> accepted_shares(const DraftCounts& drafts) {
  std::vector<double> shares;
  for (size_t i = 0; i < drafts.reached.size() && drafts.reached[i] > 0; ++i) {
    shares.push_back(static_cast<double>(drafts.accepted[i]) / static_cast<double>(drafts.reached[i]));
  }
  return shares;
}

void add_generation(nlohmann::ordered_json& json, const TaskReport& report) {
  const GenerationSpec& spec = report.task.generation;
  json["metric"] = answer_metric_name(spec.metric);
  if (spec.metric != AnswerMetric::kCode) {
    for (const AnswerMetric metric : {AnswerMetric::kStrict, AnswerMetric::kFlexible}) {
      json[fmt::format("accuracy_{}", answer_metric_name(metric))] = report.accuracy_by(metric);
    }
  }
  json["samples"] = spec.samples;
  for (const int64_t k : pass_counts(spec)) json["pass_at"][fmt::format("{}", k)] = report.pass_at(k);
  json["answer_tokens"] = report.answer_tokens;
  json["cut"] = report.cut;
  const DraftCounts& drafts = report.drafts;
  if (drafts.steps == 0) return;
  json["drafts"] = {{"steps", drafts.steps},
                    {"drafted_tokens", drafts.drafted},
                    {"accepted_tokens", drafts.num_accepted()},
                    {"acceptance_length", drafts.acceptance_length()},
                    {"conditional_acceptance_rates", accepted_shares(drafts)}};
}

nlohmann::ordered_json to_json(const TaskReport& report) {
  nlohmann::ordered_json json = {{"task", report.name()}, {"items", report.items}};
  if (report.has_accuracy()) {
    json["correct"] = report.correct;
    json["accuracy"] = report.accuracy();
    json["standard_error"] = report.standard_error();
    json["baseline"] = report.task.baseline;
    json["centred"] = report.centred();
    json["baseline_v2"] = report.task.baseline_v2;
    json["centred_v2"] = report.centred_v2();
  } else {
    json["bits_per_byte"] = report.bits_per_byte();
    json["nats_per_token"] = report.nats / static_cast<double>(report.scored_tokens);
  }
  if (report.task.chooses()) {
    json["score"] = choice_score_name(report.task.score);
    for (const ChoiceScore score : {ChoiceScore::kToken, ChoiceScore::kSum, ChoiceScore::kCharacter}) {
      json[fmt::format("accuracy_{}", choice_score_name(score))] = report.accuracy_by(score);
    }
  }
  if (report.task.is_generated()) add_generation(json, report);
  if (!report.groups.empty()) {
    json["macro_accuracy"] = report.macro_accuracy();
    for (const GroupReport& group : report.groups) {
      json["groups"][group.name] = {{"items", group.items}, {"correct", group.correct}};
    }
  }
  json["texts"] = report.texts;
  json["tokens"] = report.tokens;
  if (!report.task.is_generated()) {
    json["scored_tokens"] = report.scored_tokens;
    json["scored_bytes"] = report.scored_bytes;
  }
  json["cropped"] = report.cropped;
  json["resumed"] = report.resumed;
  json["computed_tokens"] = report.computed_tokens;
  json["seconds"] = report.seconds;
  return json;
}

void add_answers(nlohmann::ordered_json& json, const ItemOutcome& outcome) {
  if (!outcome.expected.empty()) json["expected"] = outcome.expected;
  for (size_t i = 0; i < outcome.right.size(); ++i) {
    const WrittenAnswer& answer = outcome.result.answers[i];
    json["answers"].push_back(answer.text);
    json["right"].push_back(static_cast<bool>(outcome.right[i]));
    if (outcome.expected.empty()) json["faults"].push_back(answer.fault);
  }
  json["cropped"] = outcome.result.cropped;
}

}  // namespace

std::string report_json(const EvalReport& report) {
  nlohmann::ordered_json json = {{"tasks", nlohmann::ordered_json::array()}};
  for (const TaskReport& task : report.tasks) json["tasks"].push_back(to_json(task));
  for (const SuiteMean& mean : report.means) {
    json["means"][mean.name] = {{"suite", mean.suite},
                                {"value", mean.value},
                                {"standard_error", mean.standard_error},
                                {"value_v2", mean.value_v2},
                                {"standard_error_v2", mean.standard_error_v2}};
  }
  return printed_json(json, 2) + "\n";
}

std::string item_lines(const EvalReport& report) {
  std::string lines;
  for (const TaskReport& task : report.tasks) {
    for (const ItemOutcome& outcome : task.outcomes) {
      nlohmann::ordered_json json = {{"task", task.name()}, {"item", outcome.item}, {"row", outcome.row}};
      if (task.task.chooses()) {
        json["gold"] = outcome.gold;
        json["choice"] = outcome.choice;
      }
      if (task.has_accuracy()) json["correct"] = outcome.correct;
      if (task.task.is_generated()) {
        add_answers(json, outcome);
        lines += json_text(json) + "\n";
        continue;
      }
      for (const TextScore& score : outcome.result.scores) {
        json["nats"].push_back(score.nats);
        json["tokens"].push_back(score.tokens);
        json["greedy"].push_back(score.greedy);
      }
      json["bytes"] = outcome.result.bytes;
      json["cropped"] = outcome.result.cropped;
      lines += json_text(json) + "\n";
    }
  }
  return lines;
}

std::vector<std::pair<std::string, double>> report_metrics(const EvalReport& report) {
  std::vector<std::pair<std::string, double>> metrics;
  for (const TaskReport& task : report.tasks) {
    const auto put = [&](const Metric& metric, double value) {
      metrics.emplace_back(tag_of(metric, {task.name()}), value);
    };
    if (task.has_accuracy()) {
      put(tags::kEvalTaskAcc, task.accuracy());
      put(tags::kEvalTaskCentered, task.centred());
      if (task.task.is_generated()) {
        for (const int64_t k : pass_counts(task.task.generation)) {
          if (k == 1) continue;
          metrics.emplace_back(tag_of(tags::kEvalTaskPassAt, {task.name(), std::to_string(k)}), task.pass_at(k));
        }
        if (task.task.generation.metric != AnswerMetric::kCode) {
          put(tags::kEvalTaskFlexible, task.accuracy_by(AnswerMetric::kFlexible));
        }
      }
    } else {
      put(tags::kEvalTaskBpb, task.bits_per_byte());
    }
    put(tags::kEvalTaskN, static_cast<double>(task.items));
    if (task.drafts.steps == 0) continue;
    put(tags::kEvalTaskAcceptance, task.drafts.acceptance_length());
    const std::vector<double> shares = accepted_shares(task.drafts);
    for (size_t i = 0; i < shares.size(); ++i) {
      metrics.emplace_back(tag_of(tags::kEvalTaskAccepted, {task.name(), std::to_string(i + 1)}), shares[i]);
    }
  }
  for (const SuiteMean& mean : report.means) {
    metrics.emplace_back(tag_of(tags::kEvalSuite, {mean.name}), mean.value);
    metrics.emplace_back(tag_of(tags::kEvalSuiteV2, {mean.name}), mean.value_v2);
  }
  return metrics;
}

std::string short_report(const EvalReport& report) {
  std::vector<std::string> parts;
  for (const SuiteMean& mean : report.means) {
    parts.push_back(fmt::format("{} {:.4f} +- {:.4f}", mean.name, mean.value, mean.standard_error));
  }
  for (const TaskReport& task : report.tasks) {
    if (!report.means.empty()) break;
    parts.push_back(task.has_accuracy() ? fmt::format("{} {:.1f} %", task.name(), 100.0 * task.accuracy())
                                        : fmt::format("{} {:.4f} bits per byte", task.name(), task.bits_per_byte()));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace nmoe
