// An objective: a loss that training passes minimise. A pass computes the log-probabilities of its batch's targets,
// each loss gives every token's a weight, and backward follows. Where the weights are known before the pass they are a
// row of the batch, and the head's one operation does all three chunk by chunk without ever having all logits. Where
// they depend on the log-probabilities (ratios to old ones, say), Model::forward gives these first: the weight of a
// token is then the derivative of the loss to its negative log-probability.
//
// A new objective is a file beside this one and a line in objectives.h. A further prediction depth is a head with
// layers of its own, not an objective.
//
// T tokens of a microbatch.
#pragma once

#include <cstdint>
#include <span>

#include "base/metric.h"
#include "config/config.h"
#include "model/batch.h"
#include "ops/contracts/head.h"

namespace nmoe {

// What a step has, on all ranks.
struct StepCounts {
  int64_t num_targets = 0;  // with a loss
  int64_t num_tokens = 0;
  int64_t num_seqs = 0;
};

struct Objective {
  Metric metric;  // its mean over a step
  // Those of batches that it needs, which steps have room for; what it can do without is not listed.
  std::span<const BatchRow> rows;
  // What the loss counts among the others; 0: the run has none.
  double (*coefficient)(const TrainConfig& config);
  // What the sum of its token losses over a step is divided by.
  int64_t (*divisor)(const StepCounts& step);
  // Asks the head for losses [T] stat = of the batch's tokens, and, if `scale` [1] f64 is defined, for the gradient of
  // their sum times scale, to be added to those of other objectives.
  void (*ask)(HeadLoss& args, const Batch& batch, Tensor losses, Tensor scale);
};

}  // namespace nmoe
