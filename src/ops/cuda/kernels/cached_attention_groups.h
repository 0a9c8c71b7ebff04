// Attention of single tokens to a cache in BF16 by tensor cores, for the heads of a key/value head together. Only
// cached_attention.cu and mla_cached_attention.cu use this.
#pragma once

#include "ops/cuda/cached_attention_scratch.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// Of operations that take_head_groups() (ops/cuda/cached_attention_scratch.h). Shapes are checked by the caller.
//
// Claims scratch, and so comes here in a counting run too.
void cached_attention_by_groups(Context& ctx, const CachedAttention& args);
// Its sums over each chunk of kChunkKeys positions alone, which a kernel behind it is to add up; there are rows.
// partials: sums of values weighted by exp(score - highest); statistics: the highest score, and the sum of these
// weights; both of chunks of which a row sees something.
void cached_attention_chunks(Context& ctx, const CachedAttention& args, const CachedAttentionScratch& sums);

}  // namespace nmoe::cuda
