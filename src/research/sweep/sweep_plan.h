// The runs of a sweep, and what they will take, before any begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "research/sweep/sweep_file.h"
#include "research/sweep/sweep_points.h"

namespace nmoe {

struct SweepRun {
  std::string name;  // run.name, and its id in experiments.db
  int64_t point = 0;
  int64_t seed = 0;
  std::vector<std::string> overrides;  // of the base, but for its threads: "section.key=value"
  std::string fingerprint;             // config_fingerprint()
  int64_t steps = 0;
  int64_t tokens = 0;
  double flops = 0.0;
  bool confirms = false;        // see SweepEntry
  int64_t schedule_length = 0;  // optim.schedule.length to set where the run is halved: its own; 0: not needed
};

struct SweepPlan {
  SweepFile file;
  fs::path run_dir;
  std::string device;
  int64_t ranks = 1;  // of each run
  std::vector<SweepPoint> points;
  std::vector<SweepRun> runs;     // in the order in which they begin: all points of the first seed, then of the next
  int64_t left_out = 0;           // runs behind these, which the budget has no steps or FLOPs for
  int64_t run_bytes = 0;          // of host memory, the most that a run takes; 0: not known (on GPUs)
  int64_t parallel = 1;           // at a time
  int64_t threads = 1;            // run.threads of each; 0: of GPUs' runs, as configured
  std::vector<std::string> gpus;  // for CUDA_VISIBLE_DEVICES; empty on the CPU
  bool ends_early = false;        // train.target_loss may end a run before its steps

  fs::path folder() const { return run_dir / "sweeps" / file.name; }
};

// `parallel`: in place of the file's; 0: the file's. Errors (usage): read_sweep_file's and sweep_points'; what is wrong
// with a run's configuration, naming the run; runs of one name; a goal that no run records; more runs at a time than
// memory or GPUs allow.
SweepPlan plan_sweep(const SweepFile& file, int64_t parallel = 0);

// The plan with runs of one of its points, with as many seeds that none of its runs has: to confirm what was found.
// Error (usage): load_run_config's.
SweepPlan confirming_plan(SweepPlan plan, int64_t point, int64_t num_seeds);

// As the sweep says it before it begins; `seconds_per_flop` of what has been run so far, 0: nothing.
std::string print_sweep_plan(const SweepPlan& plan, double seconds_per_flop = 0.0);

// The point's swept keys, "optim.rest.lr=0.01 ...".
std::string describe_point(const SweepPoint& point);

}  // namespace nmoe
