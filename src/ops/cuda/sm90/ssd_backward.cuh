// How the SSD scan's backward on Hopper adds up what the decays' gradient consists of: terms E of pairs of tokens, in
// places of wgmma's sums with rows of j and columns of i (ssd_backward.cu).
#pragma once

#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/ssd_panels.cuh"

namespace nmoe::cuda::sm90::scan {

constexpr int kBlockBarrier = 1;  // of all threads, and behind it those of each warpgroup
constexpr int kHalfBarrier = 2;
constexpr int kWarps = kThreads / kWarp;

// By places in a chunk.
struct TokenSums {
  float step[Q];
  float from_states[Q];             // r: a row's term through the state before the chunk
  float to_states[Q];               // V: through the state behind it
  float diagonal[Q];                // over rectangles i >= t > j, of both j and i in the half of t
  float below[kRows], left[kRows];  // of a column of the first half and of a row of the second, with the other half
  float dsteps[Q], y_by_x[Q];       // dz . x, and dy . x
  float state_by_gradient[kWarps];
};

// value[h], over the quad of lanes that has a row.
__device__ inline void add_in_quad(float (&value)[2]) {
#pragma unroll
  for (float& each : value) {
    each += __shfl_xor_sync(kAllLanes, each, 1);
    each += __shfl_xor_sync(kAllLanes, each, 2);
  }
}

// columns[c] = the sum over the warpgroup's 64 rows. parts: [4, 64], the warpgroup's own.
__device__ inline void add_columns(const float (&terms)[32], int half, float* parts, float* columns) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float sum = terms[4 * n + c] + terms[4 * n + 2 + c];
#pragma unroll
      for (int offset = 4; offset < kWarp; offset *= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
      if (own_lane() < 4) parts[own_warp() * kRows + own_column(n) + c] = sum;
    }
  }
  named_barrier_sync(kHalfBarrier + half, kWarpgroup);
  if (const int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < kRows) {
    columns[i] = (parts[i] + parts[kRows + i]) + (parts[2 * kRows + i] + parts[3 * kRows + i]);
  }
  named_barrier_sync(kHalfBarrier + half, kWarpgroup);
}

// terms[j, t] = the sum over i >= t of terms[j, i], and 0 unless t > j: what column t's rectangle has of row j.
__device__ inline void add_rows_behind(float (&terms)[32]) {
  const int lane = own_lane(), place = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float behind = 0.0F;  // the sum of later eights
#pragma unroll
    for (int n = 7; n >= 0; --n) {
      float &low = terms[4 * n + 2 * h], &high = terms[4 * n + 2 * h + 1];
      float through = low + high;
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        const float other = __shfl_down_sync(kAllLanes, through, offset);
        if (place + offset < 4) through += other;
      }
      float later = __shfl_down_sync(kAllLanes, through, 1);
      if (place == 3) later = 0.0F;
      high += later + behind;
      low += high;
      behind += __shfl_sync(kAllLanes, through, lane / 4 * 4);
      if (own_column(n) <= own_row(h)) low = 0.0F;
      if (own_column(n) + 1 <= own_row(h)) high = 0.0F;
    }
  }
}

// Four consecutive values a lane: values[k] = the sum of it and of those behind it, in segments of kLanes lanes.
template <int kLanes>
__device__ inline void sum_behind(float (&values)[4]) {
  const int place = own_lane() % kLanes;
  float through = (values[0] + values[1]) + (values[2] + values[3]);
#pragma unroll
  for (int offset = 1; offset < kLanes; offset *= 2) {
    const float other = __shfl_down_sync(kAllLanes, through, offset);
    if (place + offset < kLanes) through += other;
  }
  float behind = __shfl_down_sync(kAllLanes, through, 1);
  if (place == kLanes - 1) behind = 0.0F;
#pragma unroll
  for (int k = 3; k >= 0; --k) behind = values[k] = values[k] + behind;
}
// values[k] = the sum of those before it.
template <int kLanes>
__device__ inline void sum_before(float (&values)[4]) {
  const int place = own_lane() % kLanes;
  float through = (values[0] + values[1]) + (values[2] + values[3]);
#pragma unroll
  for (int offset = 1; offset < kLanes; offset *= 2) {
    const float other = __shfl_up_sync(kAllLanes, through, offset);
    if (place >= offset) through += other;
  }
  float before = __shfl_up_sync(kAllLanes, through, 1);
  if (place == 0) before = 0.0F;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float own = values[k];
    values[k] = before;
    before += own;
  }
}

// The gradients of sums of steps, of the lane's four tokens, by a warp. fade: exp of the chunk's last sum.
__device__ inline void gradients_of_sums(const TokenSums& tokens, float fade, float (&da)[4]) {
  const int first = own_lane() * 4;
  float behind[4], before[4], other_half[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    behind[k] = tokens.from_states[first + k];
    before[k] = tokens.to_states[first + k];
    other_half[k] = first < kRows ? tokens.below[first + k] : tokens.left[first - kRows + k];
  }
  float prefix[4], suffix[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) prefix[k] = suffix[k] = other_half[k];
  sum_behind<kWarp>(behind);
  sum_before<kWarp>(before);
  sum_before<kWarp / 2>(prefix);
  sum_behind<kWarp / 2>(suffix);
  float whole = 0.0F;
#pragma unroll
  for (const float part : tokens.state_by_gradient) whole += part;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float crossing = first < kRows ? prefix[k] : suffix[k];
    da[k] = (behind[k] + crossing) + (tokens.diagonal[first + k] + before[k]) + fade * whole;
  }
}

}  // namespace nmoe::cuda::sm90::scan
