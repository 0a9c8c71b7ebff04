// Activation functions of single values.
#pragma once

#include <cuda_runtime.h>

namespace nmoe::cuda {

__device__ inline float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

__device__ inline float swiglu(float gate, float up) { return gate * sigmoid(gate) * up; }

// max(x, 0) that lets a NaN through.
__device__ inline float relu(float x) { return x < 0.0F ? 0.0F : x; }

}  // namespace nmoe::cuda
