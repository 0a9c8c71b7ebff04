// How attention sums a row without tensor cores (ops/contracts/attention.h, "one key a lane"): what training's plain
// kernel and generation's by rows share, so that they have the same bits. A row goes through its keys from the first
// that it sees, ascending, 32 a step, of which each lane of a warp has one. Operations are named one by one, so that no
// compiler joins them otherwise in one kernel than in the other.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

#include "ops/cuda/primitives/warp.cuh"

namespace nmoe::cuda {

// What sums of values are multiplied by at the end of a row, and the logarithm of its sum.
struct RowEnd {
  float factor, lse;
};
// Of a row with a sink that has summed exp(score - highest), as AttentionForward says.
__device__ inline RowEnd end_with_sink(float highest, float total, float sink) {
  const float top = fmaxf(highest, sink), fade = expf(__fsub_rn(highest, top));
  const float all = fmaf(total, fade, expf(__fsub_rn(sink, top)));
  return {.factor = __fdiv_rn(fade, all), .lse = __fadd_rn(top, logf(all))};
}

// What a product q.k, summed as one chain of fmaf over ascending elements, is as a score.
__device__ inline float score_of(float scale, float product) { return __fmul_rn(scale, product); }

// A row's softmax as far as it has come; the same in every lane.
struct RowSoftmax {
  float highest = -INFINITY, total = 0.0F;

  struct Step {
    float weight;  // of the lane's key
    float fade;    // what sums so far are multiplied by
  };
  // The next keys, by whole warps: a lane's score, -inf where it has no key. The first lane has one.
  __device__ Step follow(float score) {
    const float before = highest;
    highest = fmaxf(highest, warp_max(score));
    const Step step{.weight = expf(score - highest), .fade = expf(before - highest)};
    total = fmaf(total, step.fade, warp_sum(step.weight));
    return step;
  }
  // sink: of the row's head, or null.
  __device__ RowEnd end(const float* sink) const {
    if (sink != nullptr) return end_with_sink(highest, total, *sink);
    return {.factor = 1.0F / total, .lse = highest + logf(total)};
  }
};

}  // namespace nmoe::cuda
