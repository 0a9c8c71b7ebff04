// Attention of many tokens to MLA's cached latents, with the bits of cached_attention_by_groups
// (kernels/attention/cached_attention_groups.h). Compiled for sm_90a only.
#pragma once

#include "ops/contracts/cache.h"
#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// For plans that are by latents, with their scratch `tiles`. Shapes as in the contract, checked by the caller; T > 0,
// and tensors begin at multiples of 16 bytes, q without gaps. Fast where neighbouring tokens are neighbours in a slot.
void latent_attention(Context& ctx, const CachedAttention& args, const Tensor& tiles);

}  // namespace nmoe::cuda::sm90
