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

// Where the phases of a schedule end, in schedule.unit.
struct ScheduleEnds {
  int64_t warmup = 0;
  int64_t hold = 0;
  int64_t decay = 0;  // warmup + hold + decay
};
// Counts are as they are; where there are shares of schedule.length, each end is at the nearest whole number to the sum
// of the spans up to it, so that shares of 100 % in all end where the run does. A rest is what the others leave, and 0
// if that is nothing. schedule.length is known where there are shares or a rest (checked).
ScheduleEnds schedule_ends(const ScheduleConfig& schedule);

// `steps` of `step_tokens` tokens, in schedule.unit.
int64_t schedule_position(const ScheduleConfig& schedule, int64_t steps, int64_t step_tokens);

// The rate of the step of `step_tokens` tokens that brings the run to `progress`, for a group with this peak.
//   warm-up: peak * x / warmup for x <= warmup, x in schedule.unit
//   hold: peak
//   decay: floor + (peak - floor) * shape(u), u from 0 to 1 over `decay`; the floor ever after
// Warm-up counts x with the step, decay u without it: the first step has a rate above 0, and so has the last one of the
// decay. A peak below the floor stays where it is.
double scheduled_rate(const ScheduleConfig& schedule, double peak, const Progress& progress, int64_t step_tokens);

// The last step with a rate above 0, which begins before the decay's end; nothing where rates go on: without a decay,
// or with a floor. Steps are of `step_tokens` tokens.
std::optional<int64_t> last_learning_step(const ScheduleConfig& schedule, int64_t step_tokens);

}  // namespace nmoe
