// What a sweep found: its points, the best first.
#pragma once

#include "research/report/ranking.h"
#include "research/sweep/sweep_state.h"

namespace nmoe {

// From the state alone. Runs that diverged, failed, were halted or have not ended are not ranked. Error (usage): no run
// has ended.
Ranking report_sweep(const SweepState& state, TrainingAmount by);

}  // namespace nmoe
