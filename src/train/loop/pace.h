// How long other ranks wait for this one before the run is given up: briefly in steady steps, so that a rank that hangs
// is found within seconds; long for work that may take one rank much longer than another.
//
// Threads: the rank's.
#pragma once

#include <chrono>

#include "config/config.h"
#include "train/step/engine.h"

namespace nmoe {

class Pace {
 public:
  Pace(const ParallelConfig& config, const Engine& engine) : config_(config), engine_(engine) {}

  // Steps of a shape until its times are steady: the first loads kernels, the second is
  // recorded, the third is the first to be measured.
  static constexpr int64_t kFirstSteps = 3;

  // Until the results of `steps` more steps have arrived, this rank may take much longer than another.
  void settle(int64_t steps = 1);
  // While true, a step may be enqueued only after the result of the one before it has arrived.
  bool is_settling() const { return settling_ > 0; }

  void step_begins() { begin_ = Clock::now(); }
  void step_ended();

  // During its lifetime, the rank may wait for something of its own, such as a disk or a terminal.
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
  bool measures_ = true;  // whether the last step of settling counts into longest_: not behind a checkpoint, whose
                          // copies it waits for
  Clock::time_point begin_ = {};
  Clock::time_point end_ = {};  // of the last step
  Milliseconds longest_{};      // the longest steady step
};

}  // namespace nmoe
