// Attention of single tokens to a cache in BF16, for head sizes that our own kernels train with: with their bits. Only
// cached_attention.cu uses this.
#pragma once

#include "ops/cuda/plans/cached_attention.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// For plans that are by blocks. Shapes are checked by the caller.
void cached_attention_by_blocks(Context& ctx, const CachedAttention& args, const CachedScores& scores);
void cached_attention_by_blocks(Context& ctx, const MlaExpandedAttention& args, const CachedScores& scores);

}  // namespace nmoe::cuda
