// All objectives, and those of a run.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "model/heads/logit_z.h"
#include "model/heads/next_token.h"

namespace nmoe {

// Every run has the first.
inline constexpr std::array kObjectives = {&kNextToken, &kLogitZ};

// Those of kObjectives that a run has, in this order, with their coefficients.
struct WeighedObjective {
  const Objective* objective = nullptr;
  double coefficient = 1.0;
};
using Objectives = std::vector<WeighedObjective>;

inline Objectives objectives_of(const TrainConfig& config) {
  Objectives chosen;
  for (const Objective* objective : kObjectives) {
    const double coefficient = objective->coefficient(config);
    if (coefficient != 0.0) chosen.push_back({objective, coefficient});
  }
  return chosen;
}

inline bool reads(const Objectives& objectives, BatchRow row) {
  return std::ranges::any_of(objectives, [&](const WeighedObjective& weighed) {
    return std::ranges::find(weighed.objective->rows, row) != weighed.objective->rows.end();
  });
}

}  // namespace nmoe
