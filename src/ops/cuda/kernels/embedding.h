// Embedding look-up and its gradient. Contracts: ops/backend.h. A device cannot report an id outside of the vocabulary:
// its row becomes NaN, which the loss then shows, and its gradient goes nowhere.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void embedding_forward(Context& ctx, Tensor ids, Tensor table, Tensor y);
void embedding_backward(Context& ctx, Tensor ids, Tensor dy, Tensor dtable);

}  // namespace nmoe::cuda
