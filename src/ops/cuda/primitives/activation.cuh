// Activation functions of single values.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "ops/cuda/primitives/flushed_math.cuh"

namespace nmoe::cuda {

// To 2^-21 of the result where x > -8; below, the exponential's argument loses as much more as it is longer.
__device__ inline float fast_sigmoid(float x) { return flushed_reciprocal(1.0F + flushed_exp(-x)); }

// For results that are stored as T. Beside BF16's rounding, what fast_sigmoid() loses does not show.
template <class T>
__device__ float sigmoid(float x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return fast_sigmoid(x);
  } else {
    return 1.0F / (1.0F + expf(-x));
  }
}

template <class T>
__device__ float swiglu(float gate, float up) {
  return gate * sigmoid<T>(gate) * up;
}

// Gradients by the gate, by what it gates, and by the weight that h = silu(gate) * up * weight has.
struct SwiGluGradient {
  float gate, up, weight;
};
template <class T>
__device__ SwiGluGradient swiglu_backward(float gate, float up, float weight, float dh) {
  // d silu(g) / dg = s + g s (1 - s), with s = sigmoid(g)
  const float s = sigmoid<T>(gate), silu = gate * s, dproduct = dh * weight;
  return {.gate = dproduct * up * (s + silu * (1.0F - s)), .up = dproduct * silu, .weight = dh * silu * up};
}

// max(x, 0) that lets a NaN through.
__device__ inline float relu(float x) { return x < 0.0F ? 0.0F : x; }

}  // namespace nmoe::cuda
