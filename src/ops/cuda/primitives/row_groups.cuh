// Kernels that work on rows, a warp or a whole block each, by their width.
#pragma once

#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {

constexpr int kRowThreads = 256;  // of a block of such kernels
constexpr int64_t kWarpRowWidth = 2048;

// A row's threads: half a warp of a block of sixteen rows, a warp of a block of eight, or the block.
template <int kNumThreads>
struct RowGroup {
  static constexpr int kThreads = kNumThreads;
  static constexpr int kRowsPerBlock = kRowThreads / kThreads;

  __device__ static int64_t row() {
    return static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / kThreads;
  }
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kThreads; }
  // The sum over the row's threads, for all of them.
  __device__ static float sum(float value) {
    if constexpr (kThreads < kWarp) {
      const unsigned own = ((1U << kThreads) - 1) << (threadIdx.x % kWarp / kThreads * kThreads);  // others may be gone
#pragma unroll
      for (int offset = kThreads / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(own, value, offset);
      return value;
    } else if constexpr (kThreads == kWarp) {
      return warp_sum(value);
    } else {
      return block_sum(value);
    }
  }
};

// Calls fn with the row group that suits rows of `width`, and the grid for `num_rows` > 0 of them.
template <class Fn>
void dispatch_rows(int64_t num_rows, int64_t width, const Fn& fn) {
  constexpr int64_t kRound = kWarp * 8;  // values that a warp takes at once
  if (const int64_t rest = width % kRound; width <= kWarpRowWidth && rest > 0 && rest <= kRound / 2) {
    fn(RowGroup<kWarp / 2>{}, grid_size(ceil_div(num_rows, RowGroup<kWarp / 2>::kRowsPerBlock)));
  } else if (width <= kWarpRowWidth) {
    fn(RowGroup<kWarp>{}, grid_size(ceil_div(num_rows, RowGroup<kWarp>::kRowsPerBlock)));
  } else {
    fn(RowGroup<kRowThreads>{}, grid_size(num_rows));
  }
}

}  // namespace nmoe::cuda
