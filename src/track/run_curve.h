// How a run's goal went with its training, and what was largest on the way.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/files.h"

namespace nmoe {

inline constexpr size_t kMostGoals = 256;

// A run's goal when it had trained on so many tokens, with so many FLOPs.
struct GoalPoint {
  double tokens = 0.0, flops = 0.0, goal = 0.0;
};

struct RunCurve {
  std::vector<GoalPoint> points;  // by rising tokens; of more than kMostGoals every so manieth, the last always
  // Of all logged steps; nothing where none was recorded. The load in %, of any router's fullest expert.
  std::optional<double> largest_grad_norm, largest_load;
};

// Of the metrics at `path` (metrics_path()), empty where there are none. A goal is a tag; values that are not finite
// are left out. train/loss is that of one batch a step: there, the goal is RecentLosses' mean.
//
// What a run's database has once nobody adds to it is kept beside it, in curve_<goal>.json, as opening a database takes
// a tenth of a second; a database that has changed since is read anew, and so is one in a folder that cannot be
// written.
RunCurve read_run_curve(const fs::path& path, const std::string& goal);

}  // namespace nmoe
