// Softplus as recurrent layers have it (contracts/ssd.h).
#pragma once

#include <cuda_runtime.h>

#include "ops/contracts/ssd.h"

namespace nmoe::cuda {

__device__ inline float softplus(float x) { return x > static_cast<float>(kSoftplusLinearAbove) ? x : log1pf(expf(x)); }
__device__ inline float softplus_slope(float x) {
  return x > static_cast<float>(kSoftplusLinearAbove) ? 1.0F : 1.0F / (1.0F + expf(-x));
}

}  // namespace nmoe::cuda
