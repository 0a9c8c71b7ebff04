// Warps, and sums over warps and blocks.
#pragma once

#include <cuda_runtime.h>

namespace nmoe::cuda {

constexpr int kWarp = 32;

constexpr unsigned kAllLanes = 0xFFFFFFFFU;

// Every lane returns the sum over its warp, of which all lanes take part.
template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}
__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

// Every thread returns the sum over its block of whole warps, of which all threads take part. An order fixed by the
// block's size.
template <class T>
__device__ T block_sum(T value) {
  __shared__ T warp_sums[kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  value = warp_sum(value);
  __syncthreads();  // the sums of the call before may still be read
  if (lane == 0) warp_sums[warp] = value;
  __syncthreads();
  return warp_sum(lane < static_cast<int>(blockDim.x) / kWarp ? warp_sums[lane] : T{0});
}

}  // namespace nmoe::cuda
