// Causal softmax attention. Contracts: ops/backend.h.
//
// cuDNN or a slow kernel of our own does the work, by dtype and head sizes (see attention.cu). Whatever cu_seqlens
// says, no position sees another sequence's.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void attention_forward(Context& ctx, const AttentionForward& args);
void attention_backward(Context& ctx, const AttentionBackward& args);

}  // namespace nmoe::cuda
