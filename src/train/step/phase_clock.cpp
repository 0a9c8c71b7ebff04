#include "train/step/phase_clock.h"

#include <map>
#include <utility>

namespace nmoe {

void PhaseClock::begin() {
  parts_.clear();
  marks_->set(0);
}

void PhaseClock::end(StepPhase phase, int64_t layer) {
  parts_.push_back({phase, layer});
  marks_->set(parts_.size());
}

std::vector<PhaseTime> PhaseClock::times() const {
  std::map<std::pair<StepPhase, int64_t>, double> sums;
  for (size_t i = 0; i < parts_.size(); ++i) {
    sums[{parts_[i].phase, parts_[i].layer}] += marks_->ms_between(i, i + 1);
  }
  std::vector<PhaseTime> times;
  for (const auto& [part, ms] : sums) times.push_back({part.first, part.second, ms});
  return times;
}

}  // namespace nmoe
