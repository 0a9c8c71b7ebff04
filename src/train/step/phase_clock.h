// Where a step's time goes, measured by marks in its work (Marks, ops/device.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/device.h"
#include "train/step/step_phase.h"

namespace nmoe {

// Of the steps that one recording runs. Threads: that which drives the device.
class PhaseClock {
 public:
  explicit PhaseClock(Device& device) : marks_(device.make_marks()) {}

  // Called while enqueueing: before everything, and where a phase of `layer`, or kNoLayer, ends.
  void begin();
  void end(StepPhase phase, int64_t layer);

  // Times of the run enqueued last, which must be over: each phase of each layer once, all microbatches together.
  std::vector<PhaseTime> times() const;

 private:
  struct Part {
    StepPhase phase;
    int64_t layer;
  };
  std::unique_ptr<Marks> marks_;
  std::vector<Part> parts_;  // part i is between marks i and i + 1
};

}  // namespace nmoe
