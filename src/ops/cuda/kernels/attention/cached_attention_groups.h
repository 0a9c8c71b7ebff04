// Attention of single tokens to a cache in BF16 by tensor cores, for the heads of a key/value head together. Only
// cached_attention.cu uses this.
#pragma once

#include "ops/cuda/plans/cached_attention.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// `plan` is by groups. Shapes are checked by the caller.
void cached_attention_by_groups(Context& ctx, const CachedAttention& args, const CachedAttentionPlan& plan);

}  // namespace nmoe::cuda
