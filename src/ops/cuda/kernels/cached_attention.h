// Attention to a key/value cache. Contracts: ops/backend.h. A row's result depends on its own sequence alone. A device
// cannot report a row whose slot or position is outside of the cache: it is not written, and attends as NaN.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void cache_write(Context& ctx, const CacheWrite& args);
void cached_attention(Context& ctx, const CachedAttention& args);
void mla_absorb_query(Context& ctx, Tensor q, Tensor kv_up, Tensor latent_q);
void mla_expand_output(Context& ctx, Tensor latents, Tensor kv_up, Tensor out);

}  // namespace nmoe::cuda
