#include "research/sweep/halving.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace nmoe {

std::vector<int64_t> surviving_points(const std::vector<RungResult>& results, double keep, GoalDirection direction) {
  struct Sum {
    double total = 0.0;
    int64_t count = 0;
    bool whole = true;
  };
  std::map<int64_t, Sum> sums;
  for (const RungResult& result : results) {
    Sum& sum = sums[result.point];
    sum.whole = sum.whole && result.goal && std::isfinite(*result.goal);
    if (!sum.whole) continue;
    sum.total += *result.goal;
    ++sum.count;
  }
  std::vector<std::pair<double, int64_t>> ranked;  // the least is the best
  for (const auto& [point, sum] : sums) {
    if (!sum.whole) continue;
    const double mean = sum.total / static_cast<double>(sum.count);
    ranked.emplace_back(direction == GoalDirection::kLeast ? mean : -mean, point);
  }
  std::ranges::sort(ranked);
  // A product such as 0.1 * 30 that rounding puts above 3 is 3.
  const double wanted = std::ceil(keep * static_cast<double>(ranked.size()) - 1e-9);
  std::vector<int64_t> points;
  for (size_t i = 0; i < ranked.size() && static_cast<double>(i) < wanted; ++i) points.push_back(ranked[i].second);
  std::ranges::sort(points);
  return points;
}

}  // namespace nmoe
