// Device helpers that kernels share: conversions, 16-byte accesses, sums of one fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/tensor.h"

namespace nmoe {

template <>
struct DTypeOf<__nv_bfloat16> {
  static constexpr DType value = DType::kBF16;
};

namespace cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;

template <class Int>
constexpr __host__ __device__ Int ceil_div(Int a, Int b) {
  return (a + b - 1) / b;
}

// Whether accesses of 16 bytes may start at `pointer`.
inline bool aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <class T>
__device__ float to_float(T value);
template <>
__device__ inline float to_float(float value) {
  return value;
}
template <>
__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

// Rounds to nearest, ties to even.
template <class T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float(float value) {
  return __float2bfloat16_rn(value);
}

// Eight values at `source`, which is aligned to 16 bytes.
__device__ inline void load8(const float* source, float (&values)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 v = reinterpret_cast<const float4*>(source)[half];
    values[4 * half] = v.x;
    values[4 * half + 1] = v.y;
    values[4 * half + 2] = v.z;
    values[4 * half + 3] = v.w;
  }
}
__device__ inline void load8(const __nv_bfloat16* source, float (&values)[8]) {
  const uint4 v = *reinterpret_cast<const uint4*>(source);
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
  }
}

__device__ inline void store8(float* target, const float (&values)[8]) {
  reinterpret_cast<float4*>(target)[0] = make_float4(values[0], values[1], values[2], values[3]);
  reinterpret_cast<float4*>(target)[1] = make_float4(values[4], values[5], values[6], values[7]);
}
__device__ inline void store8(__nv_bfloat16* target, const float (&values)[8]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned low = __bfloat16_as_ushort(__float2bfloat16_rn(values[2 * i]));
    const unsigned high = __bfloat16_as_ushort(__float2bfloat16_rn(values[2 * i + 1]));
    words[i] = low | high << 16;
  }
  *reinterpret_cast<uint4*>(target) = make_uint4(words[0], words[1], words[2], words[3]);
}

// Two values at `target`, which is aligned to their size.
__device__ inline void store2(float* target, float first, float second) {
  *reinterpret_cast<float2*>(target) = make_float2(first, second);
}
__device__ inline void store2(__nv_bfloat16* target, float first, float second) {
  *reinterpret_cast<__nv_bfloat162*>(target) = __floats2bfloat162_rn(first, second);
}

// Every lane returns the sum over the warp; all 32 lanes take part.
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

// Every thread returns the sum over a block of kThreads; all of them take part.
template <int kThreads, class T>
__device__ T block_sum(T value) {
  static_assert(kThreads % kWarp == 0 && kThreads / kWarp <= kWarp);
  __shared__ T warp_sums[kThreads / kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  value = warp_sum(value);
  __syncthreads();  // the sums of a call before this one have been read
  if (lane == 0) warp_sums[warp] = value;
  __syncthreads();
  return warp_sum(lane < kThreads / kWarp ? warp_sums[lane] : T{0});
}

}  // namespace cuda
}  // namespace nmoe
