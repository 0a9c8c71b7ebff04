// The cross-entropy of the tokens that follow, weighted where a batch has weights.
#pragma once

#include <array>

#include "model/heads/objective.h"

namespace nmoe {

inline constexpr std::array kNextTokenRows = {BatchRow::kTargets};

inline constexpr Objective kNextToken = {
    .metric = {.tag = "train/loss",
               .unit = "nats",
               .meaning = "mean cross-entropy of the step's target tokens, over all ranks"},
    .rows = kNextTokenRows,
    .coefficient = [](const TrainConfig&) { return 1.0; },
    .divisor = [](const StepCounts& step) { return step.num_targets; },
    .ask =
        [](HeadLoss& args, const Batch& batch, Tensor losses, Tensor scale) {
          args.weights = batch.rows[BatchRow::kTargetWeights];
          args.losses = losses;
          args.grad_scale = scale;
        },
};

}  // namespace nmoe
