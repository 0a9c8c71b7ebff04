// Attention of many tokens to a cache (CachedAttention, MlaExpandedAttention) by the kernel that trains
// (attention_forward.cuh): a token has the bits that it has alone. Compiled for sm_90a only.
#pragma once

#include "ops/contracts/cache.h"
#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// For plans that are by tiles, with their scratch `tiles`. Shapes as in the contract, checked by the caller; T > 0, and
// tensors begin at multiples of 16 bytes. Fast where neighbouring tokens are neighbours in a slot: a tile is those of
// them that lie in the same kTileRows positions.
void slot_attention(Context& ctx, const CachedAttention& args, const Tensor& tiles);
void slot_attention(Context& ctx, const MlaExpandedAttention& args, const Tensor& tiles);

}  // namespace nmoe::cuda::sm90
