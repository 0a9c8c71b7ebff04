// Shared memory as PTX names it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nmoe::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace nmoe::cuda
