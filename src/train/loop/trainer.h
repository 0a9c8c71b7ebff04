// The training loop: data, steps, validation, checkpoints, tracking.
//
// Everything that a run writes is under run.dir:
//   experiments.db                              which runs exist and how they ended
//   metrics/<run id>/rank_<r>.duckdb, .live     metrics (track/metrics.h); those of all ranks in rank 0's
//   metrics/<run id>/train.log                  what was printed
//   checkpoints/<run.name>/step_00000100/       states to resume from
//
// Threads: train() runs on the calling thread, and on others that it starts and ends; one run at a time per process.
// Processes: if a launcher has started several (parallel/launch.h), train() is called in each, with the same
// configuration. Only process 0 prints and records. All need the data, and the same run.dir, where they write
// checkpoints together and find the one to resume from.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "config/config.h"
#include "train/loop/validation.h"

namespace nmoe {

class Engine;
class StopSignal;

struct TrainOptions {
  bool resume = false;  // continue from the latest checkpoint, if there is one
  std::string version;  // of the program, recorded in checkpoints
  std::string commit;
  // Heard from before the call on; null: from the call on.
  const StopSignal* stop = nullptr;
  // Called by the thread of each rank before it computes a step, counted from 1. What it throws ends the run.
  std::function<void(Engine& engine, int64_t step)> before_step = {};
};

struct TrainSummary {
  bool reports = true;    // false in processes other than 0, where nothing else is set
  int64_t steps = 0;      // done in all
  int64_t steps_now = 0;  // done by this call
  double seconds = 0.0;   // of training steps in this call
  double tokens_per_s = 0.0;
  bool interrupted = false;               // by a signal; the run can be resumed from the checkpoint
  std::optional<ValidationResult> valid;  // at the end
  bool target_reached = false;            // by it: train.target_loss
  std::string device;                     // Device::description
  // For a device with its own memory; at the end of the run, by everything on the device.
  int64_t device_bytes_planned = 0;
  int64_t device_bytes_used = 0;
  std::filesystem::path checkpoint;
};

std::filesystem::path checkpoint_dir(const Config& config);

// Trains until train.steps, or until a validation reaches train.target_loss, on parallel.ranks ranks that share every
// batch and end together; a signal to any process stops all. Prints the plan first; progress goes to standard error,
// with a warning if routers stay far from balance (router_report.h).
//
// Errors: whatever makes the run impossible (usage), and at run time a loss that is not finite (naming the first tensor
// that is not) or a collapsed router. The state before the step that is not finite is saved first, since steps enqueued
// after it change nothing. A collapse is noticed at a logged step; steps already enqueued are finished and saved with
// it. A failure on one rank ends the run with that rank's error.
TrainSummary train(const Config& config, const TrainOptions& options);

}  // namespace nmoe
