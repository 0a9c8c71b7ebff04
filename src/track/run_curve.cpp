#include "track/run_curve.h"

#include <algorithm>
#include <cmath>

#include "track/metrics_reader.h"
#include "track/recent_losses.h"
#include "track/tags/losses.h"
#include "track/tags/training.h"

namespace nmoe {

RunCurve read_run_curve(const fs::path& path, const std::string& goal) {
  RunCurve curve;
  if (!has_metrics(path)) return curve;
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

}  // namespace nmoe
