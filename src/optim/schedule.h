// Learning rates over a run: linear warm-up, hold, decay.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"

namespace nmoe {

// How far a run is once the step in question is done.
struct Progress {
  int64_t steps = 0;
  int64_t tokens = 0;  // of all steps' sequences, with the padding in them
};

// The rate of the step of `step_tokens` tokens that brings the run to `progress`, for a group with this peak.
//   warm-up: peak * x / warmup for x <= warmup, x in schedule.unit
//   hold: peak
//   decay: floor + (peak - floor) * shape(u), u from 0 to 1 over `decay`; the floor ever after
// Warm-up counts x with the step, decay u without it: the first step has a rate above 0, and so has the last one of the
// decay. A peak below the floor stays where it is.
double scheduled_rate(const ScheduleConfig& schedule, double peak, const Progress& progress, int64_t step_tokens);

// warmup + hold + decay, in schedule.unit.
int64_t schedule_span(const ScheduleConfig& schedule);

// The last step with a rate above 0, which begins before the decay's end; nothing where rates go on: without a decay,
// or with a floor. Steps are of `step_tokens` tokens.
std::optional<int64_t> last_learning_step(const ScheduleConfig& schedule, int64_t step_tokens);

}  // namespace nmoe
