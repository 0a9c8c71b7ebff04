// How the SSD scan's backward on Hopper adds up what the decays' gradient consists of: terms E of pairs of tokens, in
// places of wgmma's sums with rows of j and columns of i (ssd_backward.cu). A sum over a rectangle i >= t > j is what
// tokens from t on receive less what they send. Both are of the same F32 terms, and of pairs i > j only: what decays
// nothing, i = j, would be much of both where states decay fast, and is in no rectangle.
#pragma once

#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/ssd_panels.cuh"

namespace nmoe::cuda::sm90::scan {

constexpr int kWarps = kThreads / kWarp, kHalfWarps = kWarps / 2;
constexpr int kTiles = 3;  // of 64 x 64, of which a chunk's causal pairs are: of rows j and columns i

// By places in a chunk.
struct alignas(16) TokenSums {
  float step[Q];
  float from_states[Q];                       // r: a row's term through the state before the chunk
  float to_states[Q];                         // V: through the state behind it
  float sent[Q];                              // of terms E[i, j], i > j: token j's
  float received[kTiles][kHalfWarps][kRows];  // token i's, by tiles and a warp's rows of them
  float dsteps[Q], y_by_x[Q];                 // dz . x, and dy . x
  float state_by_gradient[kHalfWarps];
};

// The chunk's tile of a half's rows and a half's columns.
__device__ inline int tile_number(int half, int columns) { return half + columns; }

// value[h], over the quad of lanes that has a row.
__device__ inline void add_in_quad(float (&value)[2]) {
#pragma unroll
  for (float& each : value) {
    each += __shfl_xor_sync(kAllLanes, each, 1);
    each += __shfl_xor_sync(kAllLanes, each, 2);
  }
}

// columns[c] = the sum over the warp's 16 rows, of which sums[2 n + c] has the lane's two: lanes that have the same
// columns halve these between them until each has a pair.
__device__ inline void add_columns(const float (&sums)[16], float* columns) {
  float eight[8], four[4], two[2];
  const auto halve = [](const auto& from, auto& to, int lane_bit) {
    constexpr int kCount = sizeof(to) / sizeof(float);
    const bool upper = (own_lane() & lane_bit) != 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float own = upper ? from[kCount + i] : from[i], other = upper ? from[i] : from[kCount + i];
      to[i] = own + __shfl_xor_sync(kAllLanes, other, lane_bit);
    }
  };
  halve(sums, eight, 16);
  halve(eight, four, 8);
  halve(four, two, 4);
  const int lane = own_lane(), n = lane / 16 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2;
  store2(columns + own_column(n), two[0], two[1]);
}

// Four consecutive values a lane: values[k] = the sum of it and of those behind it.
__device__ inline void sum_behind(float (&values)[4]) {
  float through = (values[0] + values[1]) + (values[2] + values[3]);
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const float other = __shfl_down_sync(kAllLanes, through, offset);
    if (own_lane() + offset < kWarp) through += other;
  }
  float behind = __shfl_down_sync(kAllLanes, through, 1);
  if (own_lane() == kWarp - 1) behind = 0.0F;
#pragma unroll
  for (int k = 3; k >= 0; --k) behind = values[k] = values[k] + behind;
}
// values[k] = the sum of those before it.
__device__ inline void sum_before(float (&values)[4]) {
  float through = (values[0] + values[1]) + (values[2] + values[3]);
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const float other = __shfl_up_sync(kAllLanes, through, offset);
    if (own_lane() >= offset) through += other;
  }
  float before = __shfl_up_sync(kAllLanes, through, 1);
  if (own_lane() == 0) before = 0.0F;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float own = values[k];
    values[k] = before;
    before += own;
  }
}

// The gradients of sums of steps, of the lane's four tokens, by a warp. fade: exp of the chunk's last sum.
__device__ inline void gradients_of_sums(const TokenSums& tokens, float fade, float (&da)[4]) {
  const int first = own_lane() * 4, half = first / kRows;
  float behind[4], before[4];
  load_values(tokens.from_states + first, behind);
  load_values(tokens.to_states + first, before);
  const auto add = [&](const float* values, float sign) {
    float more[4];
    load_values(values, more);
#pragma unroll
    for (int k = 0; k < 4; ++k) behind[k] = fmaf(sign, more[k], behind[k]);
  };
  for (int rows = 0; rows <= half; ++rows) {
#pragma unroll
    for (int warp = 0; warp < kHalfWarps; ++warp) {
      add(tokens.received[tile_number(rows, half)][warp] + first % kRows, 1.0F);
    }
  }
  add(tokens.sent + first, -1.0F);
  sum_behind(behind);
  sum_before(before);
  float whole = 0.0F;
#pragma unroll
  for (const float part : tokens.state_by_gradient) whole += part;
#pragma unroll
  for (int k = 0; k < 4; ++k) da[k] = (behind[k] + before[k]) + fade * whole;
}

}  // namespace nmoe::cuda::sm90::scan
