// All objectives, and those of a run.
#pragma once

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

Objectives next_token_alone();
Objectives objectives_of(const TrainConfig& config);
bool reads(const Objectives& objectives, BatchRow row);

}  // namespace nmoe
