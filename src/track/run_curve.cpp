#include "track/run_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "track/json_lines.h"
#include "track/live_file.h"
#include "track/metrics_reader.h"
#include "track/recent_losses.h"
#include "track/tags/losses.h"
#include "track/tags/training.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;

RunCurve read_metrics(const fs::path& path, const std::string& goal) {
  RunCurve curve;
  MetricsReader reader(path);
  std::vector<std::string> tags = {goal, std::string(tags::kTokensSeen.tag), std::string(tags::kFlops.tag),
                                   std::string(tags::kGradNorm.tag)};
  for (const MetricsView::Last& last : reader.tags()) {
    if (last.tag.starts_with("router/") && last.tag.ends_with("/max_load")) tags.push_back(last.tag);
  }
  reader.load(tags);
  const Series& goals = reader.series(goal);
  const auto at = [&](size_t tag, int64_t step) {
    const Series& series = reader.series(tags[tag]);
    const size_t behind = series.lower_bound(step + 1);
    return behind == 0 ? 0.0 : series.values()[behind - 1];
  };
  const bool is_of_one_batch = goal == tags::kLoss.tag;
  const size_t stride = (goals.size() + kMostGoals - 1) / kMostGoals;
  for (size_t i = 0; i < goals.size(); ++i) {
    if ((goals.size() - 1 - i) % stride != 0) continue;
    const double value = is_of_one_batch ? recent_mean(goals.values().first(i + 1)) : goals.values()[i];
    const int64_t step = goals.steps()[i];
    if (std::isfinite(value)) curve.points.push_back({at(1, step), at(2, step), value});
  }
  const auto largest = [&](size_t first_tag, size_t end_tag) {
    std::optional<double> most;
    for (size_t tag = first_tag; tag < end_tag; ++tag) {
      for (const double value : reader.series(tags[tag]).values()) {
        if (std::isfinite(value)) most = std::max(most.value_or(value), value);
      }
    }
    return most;
  };
  curve.largest_grad_norm = largest(3, 4);
  curve.largest_load = largest(4, tags.size());
  return curve;
}

// Tells a database that has changed since from one that has not; empty while a run may be adding to it.
std::string stamp_of(const fs::path& path) {
  if (!fs::exists(path) || fs::exists(live_path(path))) return "";
  return fmt::format("{} {}", fs::file_size(path), fs::last_write_time(path).time_since_epoch().count());
}

fs::path kept_path(const fs::path& path, std::string goal) {
  std::ranges::replace(goal, '/', '_');
  return path.parent_path() / fmt::format("curve_{}.json", goal);
}

std::optional<double> number_of(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<double>());
}
Json json_of(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

// Nothing where there is none of this stamp.
std::optional<RunCurve> read_kept(const fs::path& path, const std::string& stamp) {
  constexpr size_t kMostBytes = size_t{1} << 20;
  std::optional<RunCurve> kept;
  each_json_line(path, kMostBytes, [&](const Json& json) {
    if (json.at("stamp") != stamp) return;
    RunCurve curve{.points = {},
                   .largest_grad_norm = number_of(json.at("largest_grad_norm")),
                   .largest_load = number_of(json.at("largest_load"))};
    for (const Json& point : json.at("points")) {
      curve.points.push_back({point.at(0).get<double>(), point.at(1).get<double>(), point.at(2).get<double>()});
    }
    kept = std::move(curve);
  });
  return kept;
}

void keep(const fs::path& path, const std::string& stamp, const RunCurve& curve) {
  Json json = {{"stamp", stamp},
               {"largest_grad_norm", json_of(curve.largest_grad_norm)},
               {"largest_load", json_of(curve.largest_load)},
               {"points", Json::array()}};
  for (const GoalPoint& point : curve.points) json["points"].push_back({point.tokens, point.flops, point.goal});
  try {
    write_file_atomically(path, json_text(json) + '\n');
  } catch (const Error&) {  // another's folder: it is read anew next time
  }
}

}  // namespace

RunCurve read_run_curve(const fs::path& path, const std::string& goal) {
  if (!has_metrics(path)) return {};
  const std::string stamp = stamp_of(path);
  if (stamp.empty()) return read_metrics(path, goal);
  const fs::path kept = kept_path(path, goal);
  if (std::optional<RunCurve> curve = read_kept(kept, stamp)) return *std::move(curve);
  RunCurve curve = read_metrics(path, goal);
  keep(kept, stamp, curve);
  return curve;
}

}  // namespace nmoe
