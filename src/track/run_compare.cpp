#include "track/run_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "track/metrics_reader.h"
#include "track/tags/losses.h"
#include "track/tags/training.h"
#include "track/tags/validation.h"

namespace nmoe {
namespace {

// Where a run is and what it is called, not what it is.
constexpr std::array<std::string_view, 3> kPlaces = {"run.name", "run.dir", "run.experiment"};
constexpr const char* kSeed = "run.seed";
constexpr double kUnknown = std::numeric_limits<double>::infinity(), kNothing = -kUnknown;  // amounts of training

void flatten(const nlohmann::json& value, const std::string& key, std::map<std::string, std::string>& flat) {
  if (!value.is_object()) {
    flat[key] = json_text(value);
    return;
  }
  for (const auto& [name, member] : value.items()) flatten(member, key.empty() ? name : key + "." + name, flat);
}

std::map<std::string, std::string> compared_keys(const std::string& config) {
  std::map<std::string, std::string> flat = config_keys(config);
  for (const std::string_view key : kPlaces) flat.erase(std::string(key));
  return flat;
}

// The index of the last value of `amounts` at or below `limit`; nothing when there is none.
std::optional<size_t> last_within(std::span<const double> amounts, double limit) {
  const auto behind = std::ranges::upper_bound(amounts, limit);
  if (behind == amounts.begin()) return std::nullopt;
  return static_cast<size_t>(behind - amounts.begin()) - 1;
}

// How much had been trained at each step of a series; a run logs tokens and FLOPs with its loss.
std::vector<double> amounts_at(const Series& series, const Series& trained, Progression progression) {
  std::vector<double> amounts;
  for (const int64_t step : series.steps()) {
    if (progression == Progression::kSteps) {
      amounts.push_back(static_cast<double>(step));
    } else {
      const size_t behind = trained.lower_bound(step + 1);
      amounts.push_back(behind == 0 ? 0.0 : trained.values()[behind - 1]);
    }
  }
  return amounts;
}

RunLosses::Loss loss_of(const Series& series, std::span<const double> amounts, double limit) {
  RunLosses::Loss loss;
  if (series.empty()) return loss;
  loss.last = series.values().back();
  for (const double value : series.values()) {
    if (std::isfinite(value)) loss.best = std::min(loss.best.value_or(value), value);
  }
  if (const auto index = last_within(amounts, limit)) loss.at = series.values()[*index];
  return loss;
}

std::pair<double, double> mean_and_deviation(std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / (count - 1.0))};
}

std::vector<RunComparison::Seeds> seeds_of(std::span<const std::string> configs, std::span<const RunLosses> losses) {
  std::map<std::string, std::vector<size_t>> alike;  // by all but the seed
  for (size_t i = 0; i < configs.size(); ++i) {
    std::string text;
    for (const auto& [key, value] : compared_keys(configs[i]))
      if (key != kSeed) text += fmt::format("{}={}\n", key, value);
    alike[text].push_back(i);
  }
  std::vector<RunComparison::Seeds> all;
  for (auto& [text, runs] : alike) {
    std::erase_if(runs, [&](size_t run) { return !losses[run].train.at; });  // those that came to nothing
    if (runs.size() < 2) continue;
    std::vector<double> train, valid;
    for (const size_t run : runs) {
      train.push_back(*losses[run].train.at);
      if (losses[run].valid.at) valid.push_back(*losses[run].valid.at);
    }
    RunComparison::Seeds seeds;
    std::tie(seeds.train_mean, seeds.train_deviation) = mean_and_deviation(train);
    if (valid.size() == runs.size()) std::tie(seeds.valid_mean, seeds.valid_deviation) = mean_and_deviation(valid);
    seeds.runs = std::move(runs);
    all.push_back(std::move(seeds));
  }
  return all;
}

}  // namespace

std::map<std::string, std::string> config_keys(const std::string& config) {
  std::map<std::string, std::string> flat;
  flatten(parse_json<nlohmann::json>(config), "", flat);
  return flat;
}

std::vector<ConfigDifference> config_differences(std::span<const std::string> configs) {
  std::map<std::string, std::vector<std::string>> by_key;
  for (size_t i = 0; i < configs.size(); ++i) {
    for (const auto& [key, value] : compared_keys(configs[i])) {
      auto& values = by_key[key];
      values.resize(configs.size());
      values[i] = value;
    }
  }
  std::vector<ConfigDifference> differences;
  for (auto& [key, values] : by_key) {
    if (std::ranges::adjacent_find(values, std::not_equal_to<>()) == values.end()) continue;
    differences.push_back({key, std::move(values)});
  }
  return differences;
}

bool has_failed(RunStore& store, const std::string& id) {
  constexpr RunStatus kFailures[] = {RunStatus::kFailed, RunStatus::kFailedNan, RunStatus::kFailedCollapse,
                                     RunStatus::kDead};
  const std::optional<RunRow> run = store.find(id);
  return run && std::ranges::find(kFailures, run->status) != std::ranges::end(kFailures);
}

RunComparison compare_runs(RunStore& store, const fs::path& run_dir, std::span<const std::string> ids,
                           Progression progression) {
  std::vector<std::string> tags;
  for (const Metric* metric : {&tags::kLoss, &tags::kValidLoss, &tags::kTokensSeen, &tags::kFlops}) {
    tags.emplace_back(metric->tag);
  }
  std::vector<std::string> configs;
  std::deque<MetricsReader> readers;  // they do not move
  struct Amounts {
    std::vector<double> train, valid;
  };
  std::vector<Amounts> amounts;
  double least = kUnknown, least_of_failed = kUnknown;  // that a run reached
  std::vector<Series> train(ids.size()), valid(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    configs.push_back(store.config(ids[i]));
    amounts.emplace_back();
    const fs::path metrics = metrics_path(run_dir, ids[i]);
    if (!has_metrics(metrics)) continue;  // it failed before its first step
    MetricsReader& reader = readers.emplace_back(metrics);
    reader.load(tags);
    train[i] = reader.series(tags[0]);
    valid[i] = reader.series(tags[1]);
    const Series& trained = reader.series(progression == Progression::kFlops ? tags[3] : tags[2]);
    amounts[i] = {amounts_at(train[i], trained, progression), amounts_at(valid[i], trained, progression)};
    if (amounts[i].train.empty()) continue;
    double& of_its_kind = has_failed(store, ids[i]) ? least_of_failed : least;
    of_its_kind = std::min(of_its_kind, amounts[i].train.back());
  }
  RunComparison comparison{.at = least < kUnknown ? least : least_of_failed};
  if (comparison.at == kUnknown) {
    throw usage_error("none of these runs has recorded a loss", "n runs says why they ended; compare others");
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool has_losses = !amounts[i].train.empty();
    // At less than the others there is nothing to compare.
    const double limit = has_losses && amounts[i].train.back() >= comparison.at ? comparison.at : kNothing;
    RunLosses losses{.train = loss_of(train[i], amounts[i].train, limit),
                     .valid = loss_of(valid[i], amounts[i].valid, limit),
                     .reached = has_losses ? amounts[i].train.back() : 0.0};
    if (const auto index = last_within(amounts[i].train, limit)) losses.at_step = train[i].steps()[*index];
    comparison.losses.push_back(losses);
  }
  comparison.differences = config_differences(configs);
  comparison.seeds = seeds_of(configs, comparison.losses);
  return comparison;
}

}  // namespace nmoe
