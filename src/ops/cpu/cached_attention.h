// Attention to a key/value cache. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

template <class Real>
void cache_write(Context& ctx, const CacheWrite& args);
template <class Real>
void cached_attention(Context& ctx, const CachedAttention& args);
template <class Real>
void mla_absorb_query(Context& ctx, Tensor q, Tensor kv_up, Tensor latent_q);
template <class Real>
void mla_expand_output(Context& ctx, Tensor latents, Tensor kv_up, Tensor out);

}  // namespace nmoe::cpu
