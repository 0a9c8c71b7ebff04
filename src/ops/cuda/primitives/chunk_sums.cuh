// How attention in latent space adds up a row's chunks of kChunkKeys positions (plans/cached_attention.h), in ascending
// order: what kernels for few and for many tokens share, so that they have the same bits. A chunk has its highest score
// h, and the sums of exp(score - h) and of values by these.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

namespace nmoe::cuda {

// What sums so far, and those of a chunk whose highest score is `chunk`, are multiplied by; `highest` becomes that of
// all. A row that has seen nothing has a highest of -inf.
struct ChunkFactors {
  float before, own;
};
__device__ inline ChunkFactors follow_chunk(float& highest, float chunk) {
  const float both = fmaxf(highest, chunk);
  if (both == -INFINITY) return {1.0F, 0.0F};
  const ChunkFactors factors{expf(highest - both), expf(chunk - both)};
  highest = both;
  return factors;
}
__device__ inline float add_chunk(const ChunkFactors& factors, float before, float own) {
  return fmaf(before, factors.before, __fmul_rn(own, factors.own));
}

// A row's sum of exponentials after a tile of keys, whose own is `sum`.
__device__ inline float add_tile(float before, float fade, float sum) { return fmaf(before, fade, sum); }

}  // namespace nmoe::cuda
