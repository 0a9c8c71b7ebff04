#include "model/heads/objectives.h"

#include <algorithm>

namespace nmoe {

Objectives next_token_alone() { return {{&kNextToken}}; }

Objectives objectives_of(const TrainConfig& config) {
  Objectives chosen;
  for (const Objective* objective : kObjectives) {
    const double coefficient = objective->coefficient(config);
    if (coefficient != 0.0) chosen.push_back({objective, coefficient});
  }
  return chosen;
}

bool reads(const Objectives& objectives, BatchRow row) {
  return std::ranges::any_of(objectives, [&](const WeighedObjective& weighed) {
    return std::ranges::find(weighed.objective->rows, row) != weighed.objective->rows.end();
  });
}

}  // namespace nmoe
