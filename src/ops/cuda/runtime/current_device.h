// Which device the calling thread's CUDA calls are for. The only place that sets it.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {

// Device `index` from here on; no call to the driver where it is the one already. For destructors: nothing is thrown.
inline cudaError_t try_make_current(int index) noexcept {
  thread_local int current = -1;
  if (current == index) return cudaSuccess;
  const cudaError_t status = cudaSetDevice(index);
  if (status == cudaSuccess) current = index;
  return status;
}

inline void make_current(int index) { NMOE_CUDA_CHECK(try_make_current(index)); }

}  // namespace nmoe::cuda
