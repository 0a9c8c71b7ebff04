// Which device the calling thread's CUDA calls are for.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {

// Device `index` from here on; no call to the driver where it is the one already.
inline void make_current(int index) {
  int current = -1;
  NMOE_CUDA_CHECK(cudaGetDevice(&current));
  if (current != index) NMOE_CUDA_CHECK(cudaSetDevice(index));
}

}  // namespace nmoe::cuda
