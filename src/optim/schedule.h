// Learning rates over a run: linear warm-up, hold, decay.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace nmoe {

// How far a run is once the step in question is done.
struct Progress {
  int64_t steps = 0;
  int64_t tokens = 0;
};

// The rate of the step that brings the run to `progress`, for a group with this peak.
//   warm-up: peak * x / warmup for x <= warmup, x in schedule.unit
//   hold: peak
//   decay: floor + (peak - floor) * shape(u), u from 0 to 1 over `decay`; the floor ever after
// A peak below the floor stays where it is.
double scheduled_rate(const ScheduleConfig& schedule, double peak, const Progress& progress);

}  // namespace nmoe
