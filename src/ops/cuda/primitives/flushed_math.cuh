// Functions of single values by one instruction each: without the care that CUDA's own take of operands and results
// below 2^-126, which are zeros here.
#pragma once

#include <cuda_runtime.h>

namespace nmoe::cuda {

__device__ inline float flushed_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float flushed_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float flushed_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// With a multiplication before it: to 2^-21 of itself where x is not far from 0.
__device__ inline float flushed_exp(float x) {
  constexpr float kLog2E = 1.4426950408889634F;
  return flushed_exp2(x * kLog2E);
}

}  // namespace nmoe::cuda
