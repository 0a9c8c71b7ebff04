// Attention of single tokens to a cache in BF16 by tensor cores, for the heads of a key/value head together. Only
// cached_attention.cu uses this.
#pragma once

#include "ops/contracts/cache.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// Of an operation that takes_head_groups() (ops/cuda/cached_attention_scratch.h). Claims scratch, and so comes here in
// a counting run too. Shapes are checked by the caller.
void cached_attention_by_groups(Context& ctx, const CachedAttention& args);

}  // namespace nmoe::cuda
