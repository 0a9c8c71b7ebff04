// The training loop: data, steps, validation, checkpoints, tracking.
//
// Everything a run writes lies under run.dir:
//   experiments.db                              which runs exist and how they ended
//   metrics/<run id>/rank_0.duckdb              what was measured, by rank 0 for all
//   checkpoints/<run.name>/step_00000100/       where it can go on from
//
// Threads: train() runs on the calling thread, and on others that it starts and ends; one run at a time in a process.
// Processes: where a launcher started several (parallel/launch.h), train() is called in each, with the same
// configuration. Process 0 alone prints and records; all need the data, and one run.dir, where they write checkpoints
// together and find the one to go on from.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "config/config.h"
#include "train/validation.h"

namespace nmoe {

class Engine;

struct TrainOptions {
  bool resume = false;  // go on from the latest checkpoint, if there is one
  std::string version;  // of the program, recorded in checkpoints
  std::string commit;
  // Called by the thread of each rank before it computes a step, counted from 1. What it throws ends the run.
  std::function<void(Engine& engine, int64_t step)> before_step = {};
};

struct TrainSummary {
  bool reports = true;    // false in a process that leaves that to process 0: nothing else is set
  int64_t steps = 0;      // done in all
  int64_t steps_now = 0;  // done by this call
  double seconds = 0.0;   // of training steps in this call
  double tokens_per_s = 0.0;
  bool interrupted = false;               // by a signal; the checkpoint is where to go on
  std::optional<ValidationResult> valid;  // at the end
  bool target_reached = false;            // by it: train.target_loss
  std::string device;                     // Device::description
  // Of the device, where it has memory of its own; at the end, by everything on it.
  int64_t device_bytes_planned = 0;
  int64_t device_bytes_used = 0;
  std::filesystem::path checkpoint;
};

std::filesystem::path checkpoint_dir(const Config& config);

// Trains until train.steps or a validation that reaches train.target_loss, on parallel.ranks ranks that share every
// batch and end together; a signal to any process stops all. Prints the plan first; progress goes to standard error,
// with a warning where routers stay far from balance (router_report.h).
//
// Errors: whatever makes the run impossible (usage), and at run time a loss that is not finite (naming the first
// tensor that went bad) or a collapsed router. The state before the step that is not finite is saved first: steps that
// were enqueued behind it change nothing. A collapse is seen in a logged step; the steps enqueued meanwhile are
// finished and saved with it. What goes wrong on one rank alone ends the run with that rank's error.
TrainSummary train(const Config& config, const TrainOptions& options);

}  // namespace nmoe
