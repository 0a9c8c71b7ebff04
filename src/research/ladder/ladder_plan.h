// The runs of a ladder: for every size a model, its tokens, and batch, rates and decays by the ladder's laws.
#pragma once

#include <string>
#include <vector>

#include "research/ladder/ladder_file.h"
#include "research/ladder/scaling_law.h"
#include "research/sweep/sweep_plan.h"

namespace nmoe {

// One point of its sweep.
struct LadderPoint {
  double dial = 0.0;
  bool is_target = false;
  double parameters = 0.0;  // active ones
  double tokens = 0.0;      // of whole steps
  double flops = 0.0;
  int64_t batch_seqs = 0;
  double rate = 1.0, decay = 1.0;  // over the base's

  ScalingRun size() const { return {parameters, tokens, flops, 0.0}; }
};

struct LadderPlan {
  LadderFile file;
  SweepPlan sweep;                  // of all points, targets last
  std::vector<LadderPoint> points;  // as the sweep's

  // What runs before the prediction is made.
  SweepPlan without_targets() const;
};

// Sets, for every point, the keys of [sweep.keys], and train.tokens, train.batch_seqs, train.microbatch_seqs,
// optim.*.lr and optim.*.weight_decay in proportion to the base's. A rank's part of train.batch_seqs is rounded to
// quarters of train.microbatch_seqs, which is lowered where it does not divide it. The base's length, from its file or
// the ladder's [train], is what tokens are compared with.
//
// Errors (usage): plan_sweep's; a base without such a length, or with a data.mixture; a schedule whose lengths are all
// counts; laws that are no expressions, or give no number above 0; keys that the ladder sets and [sweep.keys] sets,
// too.
LadderPlan plan_ladder(const LadderFile& file, int64_t parallel = 0);

// As the ladder says it before it begins.
std::string print_ladder_plan(const LadderPlan& plan);

}  // namespace nmoe
