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

#include "config/config.h"
#include "train/loop/train_options.h"
#include "train/loop/train_summary.h"

namespace nmoe {

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
