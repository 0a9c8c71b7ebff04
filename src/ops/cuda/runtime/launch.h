// What launches of kernels share: sizes of grids, alignment, shared memory beyond the default.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "ops/cuda/runtime/check.h"

namespace nmoe::cuda {

template <class A, class B>
__host__ __device__ constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

// Whether accesses of 16 bytes may start at `pointer`.
inline bool aligned16(const void* pointer) { return std::bit_cast<uintptr_t>(pointer) % 16 == 0; }

// The number of blocks along a grid's first dimension.
inline unsigned grid_size(int64_t num_blocks) {
  NMOE_CHECK(num_blocks > 0 && num_blocks <= std::numeric_limits<int32_t>::max(), "a grid of {} blocks", num_blocks);
  return static_cast<unsigned>(num_blocks);
}
// The number of blocks along its second or third.
inline unsigned short_grid_size(int64_t num_blocks) {
  NMOE_CHECK(num_blocks > 0 && num_blocks <= 65535, "{} blocks along a grid's second or third dimension", num_blocks);
  return static_cast<unsigned>(num_blocks);
}

// The shared memory that a block may have without asking for more.
constexpr int64_t kDefaultSharedBytes = int64_t{48} << 10;

// Lets a kernel be launched with `bytes` of dynamic shared memory, which may be more than kDefaultSharedBytes. Holds
// for the current device.
template <class Kernel>
void allow_dynamic_shared(Kernel kernel, int bytes) {
  NMOE_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

}  // namespace nmoe::cuda
