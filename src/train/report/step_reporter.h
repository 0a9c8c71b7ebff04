// Reports the steps of one rank: rates over the steps since the last logged one, bits per byte, and what routers do.
//
// Threads: that of the rank, which owns it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/report/rank_recorder.h"
#include "train/report/recorder.h"
#include "train/report/router_report.h"
#include "train/step/run_state.h"

namespace nmoe {

// What is known of a step when it is enqueued, and its report needs.
struct StepFacts {
  RunState end;                  // where it ends
  int64_t targets = 0;           // with a loss, of all ranks
  int64_t special = 0;           // of these, those that stand for no text
  int64_t bytes = 0;             // of the others' text
  std::vector<uint8_t> is_text;  // of this rank's targets, if it is logged: 1 for those that stand for text, else 0
  bool log = false;
};

class StepReporter {
 public:
  // `config` and the communicator of `rank` must outlive it.
  StepReporter(const Config& config, const Rank& rank) : config_(config), rank_(rank), balance_(config) {}

  // Reports go on behind `state`. `recorder` is rank 0's, and null on others.
  void begin(const RunState& state, const std::string& run_id, Recorder* recorder);

  StepClock& clock() { return clock_; }
  void waited_for_batch(double seconds) { loader_wait_s_ += seconds; }
  // Whether the phases of a step that is logged are to be timed: once a second at most, by each rank for itself, since
  // marks in a step cost it some microseconds each.
  bool phases_due(int64_t step);
  // All ranks report the same steps, in order. Returns what makes the run stop: that a router has collapsed; else "".
  std::string report(const StepFacts& step, StepResult result);

 private:
  std::optional<double> bits_per_byte(const StepFacts& step, std::span<const float> token_losses) const;

  const Config& config_;
  const Rank rank_;
  Recorder* recorder_ = nullptr;
  std::optional<RankRecorder> own_recorder_;
  BalanceWatch balance_;
  StepClock clock_;
  std::optional<double> bits_per_byte_;  // of the last logged step
  double reported_seconds_ = 0.0;        // up to there
  int64_t reported_steps_ = 0;
  int64_t reported_tokens_ = 0;
  double reported_flops_ = 0.0;
  double loader_wait_s_ = 0.0;                           // since then
  std::chrono::steady_clock::time_point phases_time_{};  // when a step was timed last
};

}  // namespace nmoe
