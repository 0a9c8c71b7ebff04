// Sampling (ops/sampling.h).
#pragma once

#include "ops/cuda/runtime/context.h"
#include "ops/sampling.h"

namespace nmoe::cuda {

void sample_tokens(Context& ctx, const SampleTokens& args);
void penalise_logits(Context& ctx, const PenaliseLogits& args);
void pick_logits(Context& ctx, const PickLogits& args);

}  // namespace nmoe::cuda
