// Activation functions of single values.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "base/error.h"
#include "base/kinds.h"
#include "ops/contracts/activation.h"
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

// max(x, 0) that lets a NaN through.
__device__ inline float relu(float x) { return x < 0.0F ? 0.0F : x; }

// --- Activations as functors: what kernels and epilogues are made for. A hidden unit h = forward(pre) * weight has
// kParts pre-activations, which lie as many hidden units' width apart in a row. T: what results are stored as.

// Gradients of a hidden unit's pre-activations and of its weight.
template <int kParts>
struct UnitGradient {
  float pre[kParts];
  float weight;
};

// SwiGLU (arXiv 2002.05202): silu(gate) * up, of gates and of what they gate.
struct SwiGlu {
  static constexpr int kParts = activation_parts(Activation::kSwiGlu);

  template <class T>
  static __device__ float forward(const float (&pre)[kParts]) {
    return pre[0] * sigmoid<T>(pre[0]) * pre[1];
  }
  template <class T>
  static __device__ UnitGradient<kParts> backward(const float (&pre)[kParts], float weight, float dh) {
    // d silu(g) / dg = s + g s (1 - s), with s = sigmoid(g)
    const float s = sigmoid<T>(pre[0]), silu = pre[0] * s, dproduct = dh * weight;
    return {.pre = {dproduct * pre[1] * (s + silu * (1.0F - s)), dproduct * silu}, .weight = dh * silu * pre[1]};
  }
};

// Squared ReLU (arXiv 2109.08668): max(x, 0)^2.
struct ReluSquared {
  static constexpr int kParts = activation_parts(Activation::kReluSquared);

  template <class T>
  static __device__ float forward(const float (&pre)[kParts]) {
    return relu(pre[0]) * relu(pre[0]);
  }
  template <class T>
  static __device__ UnitGradient<kParts> backward(const float (&pre)[kParts], float weight, float dh) {
    const float positive = relu(pre[0]);
    return {.pre = {dh * weight * 2.0F * positive}, .weight = dh * positive * positive};
  }
};

// Clamped SwiGLU (ops/contracts/activation.h): (up + 1) g sigmoid(alpha g).
struct ClampedSwiGlu {
  static constexpr int kParts = activation_parts(Activation::kClampedSwiGlu);
  static constexpr float kAlpha = kSwiGluAlpha, kLimit = kSwiGluLimit;

  // Both let a NaN through.
  static __device__ float clamped(float x) { return x > kLimit ? kLimit : x; }
  static __device__ float clamped_both(float x) { return x < -kLimit ? -kLimit : clamped(x); }
  template <class T>
  static __device__ float forward(const float (&pre)[kParts]) {
    const float gate = clamped(pre[0]);
    return (clamped_both(pre[1]) + 1.0F) * (gate * sigmoid<T>(kAlpha * gate));
  }
  template <class T>
  static __device__ UnitGradient<kParts> backward(const float (&pre)[kParts], float weight, float dh) {
    // d (g s) / dg = s + alpha g s (1 - s), with s = sigmoid(alpha g)
    const float gate = clamped(pre[0]), up = clamped_both(pre[1]) + 1.0F;
    const float s = sigmoid<T>(kAlpha * gate), glu = gate * s, dproduct = dh * weight;
    const float dgate = dproduct * up * (s + kAlpha * glu * (1.0F - s));
    return {.pre = {pre[0] > kLimit ? 0.0F : dgate, fabsf(pre[1]) > kLimit ? 0.0F : dproduct * glu},
            .weight = dh * up * glu};
  }
};

// Hidden unit j of pre-activations by parts, and its gradients.
template <class T, class A, int kCount>
__device__ float activated(const float (&pre)[A::kParts][kCount], int j) {
  float unit[A::kParts];
#pragma unroll
  for (int part = 0; part < A::kParts; ++part) unit[part] = pre[part][j];
  return A::template forward<T>(unit);
}
template <class T, class A, int kCount>
__device__ UnitGradient<A::kParts> activation_gradient(const float (&pre)[A::kParts][kCount], int j, float weight,
                                                       float dh) {
  float unit[A::kParts];
#pragma unroll
  for (int part = 0; part < A::kParts; ++part) unit[part] = pre[part][j];
  return A::template backward<T>(unit, weight, dh);
}

// Calls fn with the functor of an activation.
template <class Fn>
void dispatch_activation(Activation kind, const Fn& fn) {
  switch (kind) {
    case Activation::kSwiGlu:
      return fn(SwiGlu{});
    case Activation::kReluSquared:
      return fn(ReluSquared{});
    case Activation::kClampedSwiGlu:
      return fn(ClampedSwiGlu{});
  }
}

// The same of the kinds that plans fuse with products (fuses() in plans/grouped_linear.h).
template <class Fn>
void dispatch_fused_activation(Activation kind, const Fn& fn) {
  NMOE_CHECK(kind != Activation::kClampedSwiGlu, "a product is not fused with activation {}", static_cast<int>(kind));
  kind == Activation::kSwiGlu ? fn(SwiGlu{}) : fn(ReluSquared{});
}

}  // namespace nmoe::cuda
