// The sum of squares in a norm, in the order that contracts/norm.h states, whoever computes it: half a warp, a warp or
// a block a row.
#pragma once

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_groups.cuh"

namespace nmoe::cuda {

// Of eight values from `i` on, in a chain of fused multiply-adds; 0 past the row's end.
template <class T>
__device__ float squares_of8(const T* x, int64_t i, int64_t width, bool vector) {
  if (i >= width) return 0.0F;
  float values[8], sum = 0.0F;
  load8(x, i, width, vector, values);
#pragma unroll
  for (int j = 0; j < 8; ++j) sum = __fmaf_rn(values[j], values[j], sum);
  return sum;
}

// Of lane `lane` of so many: every kLanes-th eight of the row.
template <int kLanes, class T>
__device__ float squares_of_lane(const T* x, int lane, int64_t width, bool vector) {
  float sum = 0.0F;
  for (int64_t i = lane * 8; i < width; i += kLanes * 8) sum += squares_of8(x, i, width, vector);
  return sum;
}

// For all threads of a row's group. Rows wider than kWarpRowWidth take a block or a warp. `vector`: as can_vectorise
// says.
template <class Group, class T>
__device__ float sum_of_squares(const T* x, int64_t width, bool vector) {
  static_assert(kWarpRowWidth == kRowThreads * 8);  // a block has eight values a thread
  const int thread = Group::thread();
  if constexpr (Group::kThreads == kRowThreads) {
    if (width > kWarpRowWidth) return block_sum(squares_of_lane<kRowThreads>(x, thread, width, vector));
    __shared__ float of_threads[kRowThreads];
    of_threads[thread] = squares_of8(x, thread * 8, width, vector);
    __syncthreads();
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kRowThreads; i += kWarp) sum += of_threads[i + thread % kWarp];
    return warp_sum(sum);
  } else if constexpr (Group::kThreads == kWarp) {
    return warp_sum(squares_of_lane<kWarp>(x, thread, width, vector));
  } else {
    static_assert(Group::kThreads == kWarp / 2);  // a thread has two lanes, the first two that meet
    float low = 0.0F, high = 0.0F;
    for (int64_t i = thread * 8; i < width; i += kWarp * 8) {
      low += squares_of8(x, i, width, vector);
      high += squares_of8(x, i + Group::kThreads * 8, width, vector);
    }
    return Group::sum(low + high);
  }
}

// The same of a row of any width, by a warp in place of a block.
template <class T>
__device__ float warp_sum_of_squares(const T* x, int64_t width, bool vector) {
  using Warp = RowGroup<kWarp>;
  if (width <= kWarpRowWidth) return sum_of_squares<Warp>(x, width, vector);
  const int lane = Warp::thread();
  float of_warps = 0.0F;  // a lane each
  for (int warp = 0; warp < kRowThreads / kWarp; ++warp) {
    const float sum = warp_sum(squares_of_lane<kRowThreads>(x, warp * kWarp + lane, width, vector));
    if (lane == warp) of_warps = sum;
  }
  return warp_sum(of_warps);
}

}  // namespace nmoe::cuda
