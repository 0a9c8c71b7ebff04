// Runs the runs of a sweep: some at a time, each a process `n train` with a row in experiments.db.
//
// Its folder, <run.dir>/sweeps/<name>:
//   state.json   sweep_state.h
//   <run>.log    what a run's processes said
//   lock         held while a sweep is at work; stop: there, it ends as on a signal
#pragma once

#include <string>

#include "research/sweep/sweep_plan.h"
#include "research/sweep/sweep_state.h"

namespace nmoe {

class StopSignal;

// Runs what has not ended yet, from where it was, and returns how it went. Progress goes to standard error.
//
// A run that crashes is gone on with, sweep.retries times; one that diverges has a result. On a signal, at
// stop_sweep() and when sweep.budget.hours are over, runs save a checkpoint and end, as they do when this process is
// killed; the next call goes on with them. `program` is the executable `n`. Errors: (usage) begin_state's; runs of
// these names that are no part of this sweep; (runtime) the sweep is at work in another process.
SweepState run_sweep(const SweepPlan& plan, const std::string& program, const StopSignal& stop);

// Asks the process that is at work on the sweep to end as on a signal. Error (usage) where none is.
void stop_sweep(const fs::path& folder);
// Whether a process is at work on it.
bool is_at_work(const fs::path& folder);

}  // namespace nmoe
