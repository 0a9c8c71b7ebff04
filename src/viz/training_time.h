// How long a run had trained at each logged step: without validation, checkpoints, and the time in which it stood
// still.
#pragma once

#include <cstddef>
#include <cstdint>

#include "track/series.h"

namespace nmoe {

class TrainingTime {
 public:
  // Seconds, from throughput/ms_per_step: each value stands for the steps since the one before. Goes on from where the
  // last call ended, so it costs what has come since; begins again where steps were taken back.
  const Series& of(const Series& ms_per_step);
  void clear() { seconds_ = {}; }
  int64_t bytes() const { return static_cast<int64_t>(seconds_.size() * 3 * sizeof(int64_t)); }

 private:
  Series seconds_;
};

}  // namespace nmoe
