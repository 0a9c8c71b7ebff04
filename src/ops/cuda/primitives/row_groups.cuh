// Kernels that work on rows, a warp or a whole block each, by their width.
#pragma once

#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {

constexpr int kRowThreads = 256;  // of a block of such kernels
constexpr int64_t kWarpRowWidth = 1024;

// A row's threads: a warp of a block of eight rows, or the block.
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
    if constexpr (kThreads == kWarp) {
      return warp_sum(value);
    } else {
      return block_sum(value);
    }
  }
};

// Calls fn with the row group that suits rows of `width`, and the grid for `num_rows` > 0 of them.
template <class Fn>
void dispatch_rows(int64_t num_rows, int64_t width, const Fn& fn) {
  if (width <= kWarpRowWidth) {
    fn(RowGroup<kWarp>{}, grid_size(ceil_div(num_rows, RowGroup<kWarp>::kRowsPerBlock)));
  } else {
    fn(RowGroup<kRowThreads>{}, grid_size(num_rows));
  }
}

}  // namespace nmoe::cuda
