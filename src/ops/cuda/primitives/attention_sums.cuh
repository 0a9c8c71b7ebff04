// How attention sums a row (ops/contracts/attention.h, "The order of sums"): what training and generation share, so
// that they have the same bits. A row belongs to a quad of lanes, as in results of wgmma and mma.m16n8k16: of its
// scores lane q of the quad has those of keys 8 j + 2 q and 8 j + 2 q + 1.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/primitives/flushed_math.cuh"
#include "ops/cuda/primitives/warp.cuh"

namespace nmoe::cuda {

// Keys of a block, by the size of values.
constexpr int attention_block_keys(int value_size) { return value_size <= 64 ? 128 : 64; }
// Whether scores may exceed `highest` by 2^kAttentionLag in p before sums follow, which they then seldom have to: where
// more sums have to follow than there are scores.
constexpr bool attention_lags(int value_size) { return value_size > attention_block_keys(value_size); }
constexpr float kAttentionLag = 8.0F;

// A row whose highest score is `highest` comes to a block whose highest is `block`: `highest` becomes what p is
// relative to from now on, and what sums so far are multiplied by is returned.
template <bool kLags>
__device__ __forceinline__ float follow_highest(float scale_log2, float block, float& highest) {
  const float before = highest;
  const bool follows = !kLags || (block - before) * scale_log2 > kAttentionLag;
  highest = follows ? fmaxf(block, before) : before;
  return flushed_exp2((before - highest) * scale_log2);
}

// A thread's scores of row h of two (s[4 j + 2 h] and the one behind it) become p, relative to `offset`, `highest`
// times scale_log2, and are added to `sums`, of the even and of the odd columns.
template <int kScores>
__device__ __forceinline__ void add_exponentials(float scale_log2, float offset, int h, float (&s)[kScores],
                                                 float (&sums)[2]) {
#pragma unroll
  for (int i = 2 * h; i < kScores; i += 4) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      s[i + odd] = flushed_exp2(fmaf(s[i + odd], scale_log2, -offset));
      sums[odd] += s[i + odd];
    }
  }
}

// The sum of a quad's four.
__device__ __forceinline__ float quad_sum(float sum) {
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  return sum + __shfl_xor_sync(kAllLanes, sum, 2);
}

}  // namespace nmoe::cuda
