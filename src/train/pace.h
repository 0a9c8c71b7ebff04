// How long a rank may keep the others waiting before the run is given up: in a step little, so that one that hangs is
// found within seconds; where work takes one rank much longer than another, long.
//
// Threads: that of the rank.
#pragma once

#include <chrono>

#include "config/config.h"
#include "train/engine.h"

namespace nmoe {

class Pace {
 public:
  Pace(const ParallelConfig& config, const Engine& engine) : config_(config), engine_(engine) {}

  // Steps of a shape that take their time: the first loads kernels, the second is recorded, of the third one sees how
  // long they take.
  static constexpr int64_t kFirstSteps = 3;

  // What follows may take this rank much longer than another, until the results of `steps` more steps are there.
  void settle(int64_t steps = 1);
  // Until then no step is to be enqueued before the one in front of it has its result.
  bool is_settling() const { return settling_ > 0; }

  void step_begins() { begin_ = Clock::now(); }
  void step_ended();

  // The rank does what it alone may wait for, such as a disk or a terminal.
  class Pause {
   public:
    explicit Pause(Pace& pace) : pace_(pace) { pace_.set(/*pausing=*/true); }
    ~Pause() { pace_.set(/*pausing=*/false); }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Pace& pace_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;
  void set(bool pausing) const;

  const ParallelConfig& config_;
  const Engine& engine_;
  int64_t settling_ = kFirstSteps;
  bool measures_ = true;  // the last of the steps that settle
  Clock::time_point begin_ = {};
  Clock::time_point end_ = {};  // of the last step
  Milliseconds longest_{};      // step
};

}  // namespace nmoe
