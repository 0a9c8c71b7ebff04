#include "research/ladder/ladder_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "research/report/json_number.h"
#include "research/report/table.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kPredictionVersion = 1;

const LadderPoint& point_of(const LadderPlan& plan, const SweepEntry& run) {
  return plan.points.at(static_cast<size_t>(run.point) - 1);
}

struct Fitted {
  std::vector<std::string> runs;
  std::vector<ScalingRun> sizes;
};

// Of sizes that have ended with a loss, in the plan's order.
Fitted ended_sizes(const LadderPlan& plan, const SweepState& state) {
  Fitted fitted;
  for (const SweepEntry& run : state.runs) {
    const LadderPoint& point = point_of(plan, run);
    if (point.is_target || run.state != SweepRunState::kDone || !run.goal) continue;
    ScalingRun size = point.size();
    size.loss = *run.goal;
    fitted.runs.push_back(run.name);
    fitted.sizes.push_back(size);
  }
  return fitted;
}

bool has_several_lengths(const LadderPlan& plan) {
  return plan.file.tokens_per_parameter.size() > 1 || !plan.file.flops.empty();
}

// The one that predicts comes last.
std::vector<ScalingLaw> fit_laws(const LadderPlan& plan, const std::vector<ScalingRun>& sizes) {
  std::vector<ScalingLaw> laws;
  if (has_several_lengths(plan)) {
    laws.emplace_back(LawOf::kParametersAndTokens, sizes);
    return laws;
  }
  for (const LawOf of : {LawOf::kParameters, LawOf::kTokens, LawOf::kFlops}) laws.emplace_back(of, sizes);
  return laws;
}

int64_t seeds_of(const LadderPlan& plan, int64_t point) {
  return std::ranges::count(plan.sweep.runs, point, &SweepRun::point);
}

StoredPrediction predict(const LadderPlan& plan, const Fitted& fitted, const ScalingLaw& law) {
  StoredPrediction prediction{.law = law.of(), .runs = fitted.runs};
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const LadderPoint& point = plan.points[i];
    if (!point.is_target) continue;
    LadderPrediction target{.point = static_cast<int64_t>(i) + 1,
                            .values = describe_point(plan.sweep.points[i]),
                            .dial = point.dial,
                            .size = point.size()};
    target.seeds = std::max<int64_t>(1, seeds_of(plan, target.point));
    const Estimate loss = law.predict(target.size, target.seeds);
    target.size.loss = loss.value;
    target.half_width = loss.half_width;
    target.naive = naive_prediction(fitted.sizes, target.size.flops);
    prediction.targets.push_back(std::move(target));
  }
  return prediction;
}

LadderReport::Outcome outcome_of(const LadderPrediction& target, const SweepState& state) {
  LadderReport::Outcome outcome;
  for (const SweepEntry& run : state.runs) {
    if (run.point == target.point && run.state == SweepRunState::kDone && run.goal) outcome.losses.push_back(*run.goal);
  }
  if (outcome.losses.empty()) return outcome;
  double sum = 0.0;
  for (const double loss : outcome.losses) sum += loss;
  const double mean = sum / static_cast<double>(outcome.losses.size());
  outcome.mean = mean;
  outcome.error = target.size.loss / mean - 1.0;
  outcome.naive_error = target.naive / mean - 1.0;
  if (target.half_width) outcome.inside = std::abs(mean - target.size.loss) <= *target.half_width;
  return outcome;
}

std::string with_width(const Estimate& estimate) {
  if (!estimate.half_width) return fmt::format("{:.4g}", estimate.value);
  return fmt::format("{:.4g} +- {:.2g}", estimate.value, *estimate.half_width);
}

// "E + c (N / 1.2 M)^-a": as it is printed.
std::vector<std::string> law_row(const ScalingLaw& law) {
  std::string terms;
  for (const ScalingLaw::Term& term : law.terms()) {
    terms += fmt::format("{}({}) (x / {})^-({})", terms.empty() ? "" : " + ", with_width(term.coefficient),
                         human_count(term.unit), with_width(term.exponent));
  }
  return {std::string(law_name(law.of())), with_width(law.floor()), terms,
          law.degrees() > 0 ? fmt::format("{:.2g} %", 100.0 * law.scatter()) : "-"};
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:+.2f} %", 100.0 * *share) : "-";
}

std::vector<std::vector<std::string>> target_rows(const LadderReport& report) {
  std::vector<std::vector<std::string>> rows = {
      {report.dial, "active", "tokens", "predicted", "measured", "off by", "inside", "naive", "off by"}};
  for (size_t i = 0; i < report.prediction.targets.size(); ++i) {
    const LadderPrediction& target = report.prediction.targets[i];
    const LadderReport::Outcome& outcome = report.outcomes[i];
    rows.push_back({fmt::format("{}", target.dial), human_count(target.size.parameters),
                    human_count(target.size.tokens),
                    target.half_width ? fmt::format("{:.4f} +- {:.4f}", target.size.loss, *target.half_width)
                                      : fmt::format("{:.4f}", target.size.loss),
                    outcome.mean ? fmt::format("{:.4f}", *outcome.mean) : "-", percent(outcome.error),
                    outcome.inside ? (*outcome.inside ? "yes" : "no") : "-", fmt::format("{:.4f}", target.naive),
                    percent(outcome.naive_error)});
  }
  return rows;
}

Json json_of(const Estimate& estimate) {
  return {{"value", estimate.value}, {"half_width", number_json(estimate.half_width)}};
}
Json json_of(const ScalingRun& run) {
  return {{"parameters", run.parameters}, {"tokens", run.tokens}, {"flops", run.flops}, {"loss", run.loss}};
}
Json json_of(const LadderPrediction& target) {
  Json json = {{"point", target.point}, {"values", target.values}, {"dial", target.dial}};
  json.update(json_of(target.size));
  json["half_width"] = number_json(target.half_width);
  json["naive"] = target.naive;
  json["seeds"] = target.seeds;
  return json;
}

LawOf law_named(const std::string& name) {
  for (const LawOf law : {LawOf::kParameters, LawOf::kTokens, LawOf::kFlops, LawOf::kParametersAndTokens}) {
    if (law_name(law) == name) return law;
  }
  throw JsonError(fmt::format("there is no law of '{}'", name));
}

StoredPrediction prediction_of(const Json& json) {
  if (integer_of<int64_t>(json.at("version")) != kPredictionVersion) throw JsonError("it is of another version");
  StoredPrediction prediction{.law = law_named(json.at("law").get<std::string>()),
                              .runs = json.at("runs").get<std::vector<std::string>>()};
  for (const Json& target : json.at("targets")) {
    prediction.targets.push_back({.point = integer_of<int64_t>(target.at("point")),
                                  .values = target.at("values").get<std::string>(),
                                  .dial = target.at("dial").get<double>(),
                                  .size = {target.at("parameters").get<double>(), target.at("tokens").get<double>(),
                                           target.at("flops").get<double>(), target.at("loss").get<double>()},
                                  .half_width = target.at("half_width").is_null()
                                                    ? std::nullopt
                                                    : std::optional(target.at("half_width").get<double>()),
                                  .naive = target.at("naive").get<double>(),
                                  .seeds = integer_of<int64_t>(target.at("seeds"))});
  }
  return prediction;
}

}  // namespace

fs::path prediction_path(const fs::path& folder) { return folder / "prediction.json"; }

void write_prediction(const fs::path& folder, const StoredPrediction& prediction) {
  const fs::path path = prediction_path(folder);
  if (fs::exists(path)) {
    throw runtime_error(fmt::format("{} exists: a prediction is made once", path.string()),
                        "give the ladder another sweep.name");
  }
  Json json = {{"version", kPredictionVersion},
               {"law", law_name(prediction.law)},
               {"runs", prediction.runs},
               {"targets", Json::array()}};
  for (const LadderPrediction& target : prediction.targets) json["targets"].push_back(json_of(target));
  write_file_atomically(path, printed_json(json, 1) + "\n");
}

std::optional<StoredPrediction> read_prediction(const fs::path& folder) {
  const fs::path path = prediction_path(folder);
  if (!fs::exists(path)) return std::nullopt;
  const auto fault = [&](const std::exception& error) {
    return runtime_error(fmt::format("'{}' is no ladder's prediction: {}", path.string(), error.what()),
                         "move it away");
  };
  try {
    return prediction_of(parse_json<Json>(read_file(path)));
  } catch (const JsonError& error) {
    throw fault(error);
  } catch (const nlohmann::json::exception& error) {
    throw fault(error);
  }
}

StoredPrediction predict_targets(const LadderPlan& plan, const SweepState& state) {
  for (const SweepEntry& run : state.runs) {
    if (point_of(plan, run).is_target) continue;
    if (run.state == SweepRunState::kWaiting || run.state == SweepRunState::kBegun) {
      throw usage_error(fmt::format("run {} of the ladder has not ended", run.name),
                        "go on with n research ladder " + plan.file.sweep.path.string());
    }
  }
  const Fitted fitted = ended_sizes(plan, state);
  return predict(plan, fitted, fit_laws(plan, fitted.sizes).back());
}

LadderReport report_ladder(const LadderPlan& plan, const SweepState& state,
                           const std::optional<StoredPrediction>& prediction) {
  LadderReport report{.name = state.name, .goal = state.goal, .dial = plan.file.sizes().keys.front()};
  Fitted fitted = ended_sizes(plan, state);
  report.laws = fit_laws(plan, fitted.sizes);
  const ScalingLaw& law = report.laws.back();
  report.prediction = prediction ? *prediction : predict(plan, fitted, law);
  for (const SweepEntry& run : state.runs) {
    const bool is_open = run.state == SweepRunState::kWaiting || run.state == SweepRunState::kBegun;
    if (!is_open && run.state != SweepRunState::kDone) report.others.push_back(run);
  }
  for (const LadderPrediction& target : report.prediction.targets) {
    report.outcomes.push_back(outcome_of(target, state));
    if (law.of() != LawOf::kParametersAndTokens) continue;
    const std::optional<Estimate> best = law.optimal_parameters(target.size.flops);
    if (!best) continue;
    report.optima.push_back({.flops = target.size.flops,
                             .tokens = target.size.flops / law.flops_per_parameter_token() / best->value,
                             .parameters = *best});
  }
  report.runs = std::move(fitted.runs);
  report.sizes = std::move(fitted.sizes);
  return report;
}

std::string print_ladder_report(const LadderReport& report, bool markdown) {
  std::string text =
      fmt::format("ladder {}: laws of {} from {} runs; +- are 95 % intervals, if the law has this form\n\n",
                  report.name, report.goal, report.runs.size());
  std::vector<std::vector<std::string>> rows = {{"law of", "floor", "falling part", "scatter"}};
  for (const ScalingLaw& law : report.laws) rows.push_back(law_row(law));
  text += table_text(rows, markdown);
  if (report.laws.back().floor().value == 0.0) {
    text += "\nNOTE: no floor can be told from these runs; if there is one, larger models come out above the law\n";
  }
  if (!report.prediction.targets.empty()) {
    text += fmt::format("\npredicted by the law of {} before the targets ran; naive: a straight line in logarithms\n\n",
                        law_name(report.prediction.law));
    text += table_text(target_rows(report), markdown);
  }
  for (const LadderReport::Optimum& optimum : report.optima) {
    text += fmt::format("\n{}: best spent on {} parameters and {} tokens, {:.1f} each",
                        human_quantity(optimum.flops, "FLOP"), human_count(optimum.parameters.value),
                        human_count(optimum.tokens), optimum.tokens / optimum.parameters.value);
    if (const auto& width = optimum.parameters.half_width) {
      text += fmt::format(" (parameters from {} to {})", human_count(optimum.parameters.value / (1.0 + *width)),
                          human_count(optimum.parameters.value * (1.0 + *width)));
    }
    text += "\n";
  }
  if (report.others.empty()) return text;
  text += "\nnot among them:\n\n";
  rows = {{"run", "state", "reason"}};
  for (const SweepEntry& run : report.others) {
    rows.push_back({run.name, std::string(sweep_run_state_name(run.state)), run.reason.empty() ? "-" : run.reason});
  }
  return text + table_text(rows, markdown);
}

Json ladder_report_json(const LadderReport& report) {
  Json json = {{"name", report.name},      {"goal", report.goal},     {"dial", report.dial},
               {"sizes", Json::array()},   {"laws", Json::array()},   {"predicted_by", law_name(report.prediction.law)},
               {"targets", Json::array()}, {"optima", Json::array()}, {"others", Json::array()}};
  for (size_t i = 0; i < report.runs.size(); ++i) {
    Json size = {{"run", report.runs[i]}};
    size.update(json_of(report.sizes[i]));
    json["sizes"].push_back(size);
  }
  for (const ScalingLaw& law : report.laws) {
    Json of_law = {{"of", law_name(law.of())},
                   {"floor", json_of(law.floor())},
                   {"terms", Json::array()},
                   {"scatter", law.scatter()},
                   {"degrees", law.degrees()}};
    for (const ScalingLaw::Term& term : law.terms()) {
      of_law["terms"].push_back(
          {{"unit", term.unit}, {"coefficient", json_of(term.coefficient)}, {"exponent", json_of(term.exponent)}});
    }
    json["laws"].push_back(of_law);
  }
  for (size_t i = 0; i < report.prediction.targets.size(); ++i) {
    const LadderReport::Outcome& outcome = report.outcomes[i];
    Json target = json_of(report.prediction.targets[i]);
    target["measured"] = number_json(outcome.mean);
    target["losses"] = outcome.losses;
    target["error"] = number_json(outcome.error);
    target["naive_error"] = number_json(outcome.naive_error);
    target["inside"] = outcome.inside ? Json(*outcome.inside) : Json(nullptr);
    json["targets"].push_back(target);
  }
  for (const LadderReport::Optimum& optimum : report.optima) {
    json["optima"].push_back(
        {{"flops", optimum.flops}, {"parameters", json_of(optimum.parameters)}, {"tokens", optimum.tokens}});
  }
  for (const SweepEntry& run : report.others) {
    json["others"].push_back({{"run", run.name}, {"state", sweep_run_state_name(run.state)}, {"reason", run.reason}});
  }
  return json;
}

}  // namespace nmoe
