// Attention to caches by TMA and wgmma: BF16 on Hopper, to training's bits (sm90/attention.h). Which calls it takes,
// plans/cached_attention.h says. Compiled for sm_90a only.
//
// One H100, 2026-11-27, 16 heads of 128 + 64 and 128, GB/s of caches (by blocks, kernels/attention/ beside it), and
// prompts, TFLOP/s (training's beside it):
//   256 sequences behind 1,024 positions   3,043   2,763
//   16 sequences behind 1,024              2,737   2,163
//   256 sequences behind 64                2,374   1,100
//   2,048 rows of a slot from its first    443     466
//   2,048 behind 2,048                     527
#pragma once

#include "ops/contracts/cache.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda::sm90 {

// Shapes as in the contract, checked by the caller. Heads (keys, values) are 64/64, 128/128 or 192/128; of MLA's, 64
// elements of keys are shared. No scratch.
void cached_attention(Context& ctx, const CachedAttention& args);
void mla_expanded_attention(Context& ctx, const MlaExpandedAttention& args);

}  // namespace nmoe::cuda::sm90
