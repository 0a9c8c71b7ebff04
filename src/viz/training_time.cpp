#include "viz/training_time.h"

#include <cmath>

namespace nmoe {

const Series& TrainingTime::of(const Series& ms_per_step) {
  const auto steps = ms_per_step.steps();
  size_t done = seconds_.size();
  if (done > steps.size() || (done > 0 && seconds_.steps()[done - 1] != steps[done - 1])) {
    clear();
    done = 0;
  }
  double seconds = done == 0 ? 0.0 : seconds_.values()[done - 1];
  for (size_t i = done; i < steps.size(); ++i) {
    const double ms = ms_per_step.values()[i];
    const int64_t before = i == 0 ? 0 : steps[i - 1];
    if (std::isfinite(ms)) seconds += 1e-3 * ms * static_cast<double>(steps[i] - before);
    seconds_.put(steps[i], seconds, ms_per_step.times_ms()[i]);
  }
  return seconds_;
}

}  // namespace nmoe
