// How far a sweep is: <run.dir>/sweeps/<name>/state.json, replaced as a whole whenever it changes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "research/sweep/sweep_plan.h"
#include "track/run_curve.h"

namespace nmoe {

enum class SweepRunState {
  kWaiting,   // not begun
  kBegun,     // running, or to be gone on with
  kDone,      // all its steps
  kDiverged,  // a loss or gradient that is not finite, or a collapsed router: a result
  kFailed,    // crashed more often than sweep.retries, or refused
  kHalted,    // ended early, by halving
};

std::string_view sweep_run_state_name(SweepRunState state);  // "waiting", ...

struct SweepEntry {
  // As planned; a sweep that goes on must plan the same.
  std::string name;
  int64_t point = 0, seed = 0;
  std::string values;  // describe_point()
  std::string fingerprint;
  int64_t steps = 0;
  double flops = 0.0;
  bool confirms = false;  // with a fresh seed, what the others found: not ranked with them
  // As it went.
  SweepRunState state = SweepRunState::kWaiting;
  int64_t rung = 0;  // of sweep.halving.at, that it has passed
  int64_t crashes = 0;
  double seconds = 0.0;        // of its processes
  std::optional<double> goal;  // when it ended, or at its last rung
  RunCurve curve;              // as far as it got
  std::string reason;          // of an end other than kDone
};

struct SweepState {
  std::string name, file;
  std::string goal;
  bool goal_is_largest = false;
  double seconds = 0.0;       // that the sweep has been at work, for sweep.budget.hours
  int64_t rungs_decided = 0;  // of sweep.halving.at
  std::vector<SweepEntry> runs;
};

fs::path sweep_state_path(const fs::path& folder);
void write_sweep_state(const fs::path& folder, const SweepState& state);
// Nothing where there is no file. Error (runtime): it is none of ours.
std::optional<SweepState> read_sweep_state(const fs::path& folder);

// A new sweep's, or, where there is one before, that one with the runs that are new. Error (usage): a run of it that
// the plan has no more, or otherwise; those that confirm stay.
SweepState begin_state(const SweepPlan& plan, std::optional<SweepState> before);

}  // namespace nmoe
