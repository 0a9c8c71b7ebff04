// What a rank measures of itself, and the first rank of a process of its host's GPUs. Recorder has what is of all
// ranks.
//
// Threads: that of the rank, which owns it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "config/config.h"
#include "parallel/rank.h"
#include "track/gpu_extremes.h"
#include "track/gpu_watch.h"
#include "track/metrics.h"
#include "train/recorder.h"

namespace nmoe {

class RankRecorder {
 public:
  // Of the run `run_id`, which goes on after `step`. `recorder` is rank 0's, with whose values its own are recorded;
  // other ranks have none. What cannot be recorded is warned of: training can do without.
  RankRecorder(const Config& config, const Rank& rank, const std::string& run_id, int64_t step, Recorder* recorder);

  // A logged step. Of rank 0 it was in Recorder::record().
  void record(const StepReport& report);

 private:
  std::optional<MetricsWriter> own_;  // where there is no recorder
  std::atomic<int64_t> step_;         // of which the GPUs' state is recorded
  GpuExtremes extremes_;              // of the watch's thread
  std::optional<GpuWatch> gpus_;      // last: its thread uses all of the above
};

}  // namespace nmoe
