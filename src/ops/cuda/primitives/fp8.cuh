// Blocks of BF16 values to E4M3, by the instruction for it, which rounds as float_to_e4m3 (tensor/low_precision.h)
// does; and back.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace nmoe::cuda {

// Two codes, the first in the low byte.
__device__ inline uint16_t e4m3_pair(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}
__device__ inline uint32_t e4m3_four(float a, float b, float c, float d) {
  return static_cast<uint32_t>(e4m3_pair(a, b)) | static_cast<uint32_t>(e4m3_pair(c, d)) << 16;
}

// The larger magnitudes of BF16 pairs, of each half by itself.
__device__ inline uint32_t larger_magnitudes(uint32_t largest, const uint4& pairs) {
  constexpr uint32_t kMagnitudes = 0x7FFF7FFFU;
  largest = __vmaxu2(largest, pairs.x & kMagnitudes);
  largest = __vmaxu2(largest, pairs.y & kMagnitudes);
  largest = __vmaxu2(largest, pairs.z & kMagnitudes);
  return __vmaxu2(largest, pairs.w & kMagnitudes);
}
// The larger of both halves, as bits of a float.
__device__ inline unsigned larger_magnitude(uint32_t pair) { return max(pair << 16, pair & 0xFFFF0000U); }

// Codes of eight BF16 values times `factor`.
__device__ inline uint2 e4m3_eight(const uint4& pairs, float factor) {
  const auto four = [factor](uint32_t a, uint32_t b) {
    const auto low = [factor](uint32_t pair) { return __uint_as_float(pair << 16) * factor; };
    const auto high = [factor](uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000U) * factor; };
    return e4m3_four(low(a), high(a), low(b), high(b));
  };
  return make_uint2(four(pairs.x, pairs.y), four(pairs.z, pairs.w));
}

// What codes, the first in the low byte, stand for, times `scale`: of two, and of four.
__device__ inline float2 e4m3_pair_values(uint32_t codes, float scale) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(codes);
  const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  return make_float2(values.x * scale, values.y * scale);
}
__device__ inline void e4m3_values(uint32_t codes, float scale, float& a, float& b, float& c, float& d) {
  const float2 low = e4m3_pair_values(codes & 0xFFFFU, scale), high = e4m3_pair_values(codes >> 16, scale);
  a = low.x, b = low.y, c = high.x, d = high.y;
}

}  // namespace nmoe::cuda
