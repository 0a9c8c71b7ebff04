// The language-model head fused with softmax cross-entropy. Contract: ops/backend.h. A target beyond the vocabulary
// makes its token's loss NaN and its gradient 0: the device cannot throw.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void head_loss(Context& ctx, const HeadLoss& args);

}  // namespace nmoe::cuda
