// Sampling (ops/sampling.h).
#pragma once

#include "ops/cuda/runtime/context.h"
#include "ops/sampling.h"

namespace nmoe::cuda {

void sample_tokens(Context& ctx, const SampleTokens& args);
void penalise_logits(Context& ctx, const PenaliseLogits& args);

}  // namespace nmoe::cuda
