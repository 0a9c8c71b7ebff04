// z-loss: the square of the log of the softmax's denominator, which keeps logits from drifting away from zero (PaLM,
// arXiv 2204.02311, section 5: log^2 Z, with a coefficient of 1e-4).
#pragma once

#include <array>

#include "model/heads/objective.h"

namespace nmoe {

inline constexpr std::array kLogitZRows = {BatchRow::kTargets};

inline constexpr Objective kLogitZ = {
    .metric = {.tag = "train/logit_z_loss",
               .unit = "",
               .meaning =
                   "loss that keeps logits small: mean square of the log of the sum of their exponentials, times "
                   "train.logit_z_loss, over all ranks"},
    .rows = kLogitZRows,
    .coefficient = [](const TrainConfig& config) { return config.logit_z_loss; },
    .divisor = [](const StepCounts& step) { return step.num_targets; },
    .ask =
        [](HeadLoss& args, const Batch&, Tensor losses, Tensor scale) {
          args.z_losses = losses;
          args.z_scale = scale;
        },
};

}  // namespace nmoe
