// Rows of sums as wgmma leaves them, of which a quad of lanes has one between them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/primitives/warp.cuh"

namespace nmoe::cuda::sm90 {

// Between the lanes of a quad: lane i gets what the four have in x[i].
__device__ inline void transpose_in_quad(uint32_t (&x)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? x[i] : x[i | bit], bit);
      if (upper) {
        x[i] = got;
      } else {
        x[i | bit] = got;
      }
    }
  }
}

}  // namespace nmoe::cuda::sm90
