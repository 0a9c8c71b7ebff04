// The parts of MLA's keys and values (contracts/attention.h), for kernels that take whole heads; memory-bound.
#pragma once

#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda {

// k [T, H, nope + rope] and v [T, H, Dv] = what kv [T, H, nope + Dv] and k_rope [T, rope], apart, are the parts of.
void assemble_keys(Context& ctx, Tensor kv, Tensor k_rope, Tensor k, Tensor v);
// The gradients of parts: dkv, and dk_rope as sum_heads() adds it up.
void split_key_gradients(Context& ctx, Tensor dk, Tensor dv, Tensor dkv, Tensor dk_rope);
// dk_rope [T, rope], apart = the sum of `of_heads` [T, H, rope] over heads, in their order, in F32.
void sum_heads(Context& ctx, Tensor of_heads, Tensor dk_rope);

}  // namespace nmoe::cuda
