// Records what concerns one rank, and on the first rank of a process also the GPUs of its
// host. Recorder records what concerns all ranks.
//
// Threads: that of the rank, which owns it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "parallel/rank.h"
#include "track/gpu_extremes.h"
#include "track/gpu_watch.h"
#include "track/metrics.h"
#include "train/report/recorder.h"

namespace nmoe {

class RankRecorder {
 public:
  // For the run `run_id`, which continues after `step`. `recorder` is rank 0's, together with whose values its own are
  // recorded; other ranks have none. If something cannot be recorded, there is only a warning.
  RankRecorder(const Config& config, const Rank& rank, const std::string& run_id, int64_t step, Recorder* recorder);

  // Records a logged step; for rank 0, after Recorder::record().
  void record(const StepReport& report);

 private:
  std::unique_ptr<MetricsWriter> own_;  // where there is no recorder
  std::atomic<int64_t> step_;           // of which the GPUs' state is recorded
  GpuExtremes extremes_;                // of the watch's thread
  std::optional<GpuWatch> gpus_;        // last: its thread uses all of the above
};

}  // namespace nmoe
