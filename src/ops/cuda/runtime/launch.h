// What launches of kernels share: sizes of grids, alignment, shared memory beyond the default.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/error.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/context.h"

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

// Launches a kernel that waits by itself for what was enqueued before (primitives/early_launch.cuh): it starts early
// where the context says so. launch_clusters: clusters of `blocks` blocks, which the grid is a whole number of.
template <class... Parameters, class... Arguments>
void launch_clusters(const Context& ctx, void (*kernel)(Parameters...), dim3 grid, int threads, int blocks,
                     int64_t shared_bytes, Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = ctx.stream;
  config.attrs = attributes;
  if (ctx.starts_early) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (blocks > 1) {
    cudaLaunchAttribute& clusters = attributes[config.numAttrs++];
    clusters.id = cudaLaunchAttributeClusterDimension;
    clusters.val.clusterDim.x = static_cast<unsigned>(blocks);
    clusters.val.clusterDim.y = clusters.val.clusterDim.z = 1;
  }
  NMOE_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}
template <class... Parameters, class... Arguments>
void launch_early(const Context& ctx, void (*kernel)(Parameters...), dim3 grid, int threads, int64_t shared_bytes,
                  Arguments&&... arguments) {
  launch_clusters(ctx, kernel, grid, threads, 1, shared_bytes, std::forward<Arguments>(arguments)...);
}

// Lets a kernel be launched with `bytes` of dynamic shared memory, which may be more than kDefaultSharedBytes. Holds
// for the current device.
template <class Kernel>
void allow_dynamic_shared(Kernel kernel, int bytes) {
  NMOE_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

// Has a multiprocessor's memory split so that as many of a kernel's blocks lie on it as their shared memory allows, and
// that kernels which start early find it split alike. Holds for the current device.
template <class Kernel>
void prefer_shared(Kernel kernel) {
  NMOE_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
}

}  // namespace nmoe::cuda
