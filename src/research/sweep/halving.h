// Which points of a sweep go on from a rung (successive halving, arXiv 1502.07943).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "research/sweep/sweep_file.h"

namespace nmoe {

// One run's goal at a rung; nothing: it diverged or failed.
struct RungResult {
  int64_t point = 0;
  std::optional<double> goal;
};

// The points, rising, that go on: of those with a goal the best ceil(keep * their number), by the mean of their runs'
// goals; of equals the one with the smaller number. A point of which a run has none is out.
std::vector<int64_t> surviving_points(const std::vector<RungResult>& results, double keep, GoalDirection direction);

}  // namespace nmoe
