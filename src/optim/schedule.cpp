#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

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

// In schedule.unit, not rounded.
double length_of(const Span& span, const ScheduleConfig& schedule) {
  if (span.kind() == Span::Kind::kCount) return static_cast<double>(span.count());
  return span.percent() * static_cast<double>(schedule.length) / 100.0;
}

}  // namespace

ScheduleEnds schedule_ends(const ScheduleConfig& schedule) {
  if (!schedule.needs_length()) {
    const int64_t held = schedule.warmup.count() + schedule.hold.count();
    return {.warmup = schedule.warmup.count(), .hold = held, .decay = held + schedule.decay.count()};
  }
  NMOE_CHECK(schedule.length > 0, "a schedule with shares of a run whose length is not known");
  const double before = length_of(schedule.warmup, schedule), after = length_of(schedule.decay, schedule);
  const double rest = std::max(0.0, static_cast<double>(schedule.length) - before - after);
  const double held = before + (schedule.hold.kind() == Span::Kind::kRest ? rest : length_of(schedule.hold, schedule));
  return {.warmup = std::llround(before), .hold = std::llround(held), .decay = std::llround(held + after)};
}

int64_t schedule_position(const ScheduleConfig& schedule, int64_t steps, int64_t step_tokens) {
  return schedule.unit == ScheduleUnit::kSteps ? steps : steps * step_tokens;
}

double scheduled_rate(const ScheduleConfig& schedule, double peak, const Progress& progress, int64_t step_tokens) {
  const ScheduleEnds ends = schedule_ends(schedule);
  const int64_t position = schedule.unit == ScheduleUnit::kSteps ? progress.steps : progress.tokens;
  if (position < ends.warmup) return peak * static_cast<double>(position) / static_cast<double>(ends.warmup);
  const int64_t into_decay = position - schedule_position(schedule, 1, step_tokens) - ends.hold;
  if (schedule.decay.is_none() || into_decay <= 0) return peak;
  const double u = ends.decay == ends.hold
                       ? 1.0
                       : std::min(1.0, static_cast<double>(into_decay) / static_cast<double>(ends.decay - ends.hold));
  const double floor = std::min(schedule.floor, peak);
  return floor + (peak - floor) * decay_curve(schedule.shape, u);
}

std::optional<int64_t> last_learning_step(const ScheduleConfig& schedule, int64_t step_tokens) {
  if (schedule.decay.is_none() || schedule.floor > 0.0) return std::nullopt;
  const int64_t per_step = schedule_position(schedule, 1, step_tokens);
  return (schedule_ends(schedule).decay + per_step - 1) / per_step;
}

}  // namespace nmoe
