// Keys and values of MLA from what the layers give, and back. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void mla_expand_forward(Context& ctx, Tensor kv, Tensor k_rope, Tensor k, Tensor v);
void mla_expand_backward(Context& ctx, Tensor dk, Tensor dv, Tensor dkv, Tensor dk_rope);

}  // namespace nmoe::cuda
