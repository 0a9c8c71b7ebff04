#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nmoe {
namespace {

// 1 at u = 0, 0 at u = 1.
double decay_curve(DecayShape shape, double u) {
  switch (shape) {
    case DecayShape::kCosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * u));
    case DecayShape::kLinear:
      return 1.0 - u;
    case DecayShape::kSqrt:
      return 1.0 - std::sqrt(u);
  }
  return 0.0;
}

// A step's length in schedule.unit.
int64_t step_length(const ScheduleConfig& schedule, int64_t step_tokens) {
  return schedule.unit == ScheduleUnit::kSteps ? 1 : step_tokens;
}

}  // namespace

double scheduled_rate(const ScheduleConfig& schedule, double peak, const Progress& progress, int64_t step_tokens) {
  const int64_t position = schedule.unit == ScheduleUnit::kSteps ? progress.steps : progress.tokens;
  if (position < schedule.warmup) {
    return peak * static_cast<double>(position) / static_cast<double>(schedule.warmup);
  }
  const int64_t before = position - step_length(schedule, step_tokens);
  const int64_t into_decay = before - schedule.warmup - schedule.hold;
  if (schedule.decay == 0 || into_decay <= 0) return peak;
  const double u = std::min(1.0, static_cast<double>(into_decay) / static_cast<double>(schedule.decay));
  const double floor = std::min(schedule.floor, peak);
  return floor + (peak - floor) * decay_curve(schedule.shape, u);
}

int64_t schedule_span(const ScheduleConfig& schedule) { return schedule.warmup + schedule.hold + schedule.decay; }

std::optional<int64_t> last_learning_step(const ScheduleConfig& schedule, int64_t step_tokens) {
  if (schedule.decay == 0 || schedule.floor > 0.0) return std::nullopt;
  const int64_t per_step = step_length(schedule, step_tokens);
  return (schedule_span(schedule) + per_step - 1) / per_step;
}

}  // namespace nmoe
