#include "ops/cuda/runtime/memory.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "ops/cuda/kernel_set.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/current_device.h"

namespace nmoe::cuda {

void* DeviceMemory::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  make_current(device_index_);
  const auto size = static_cast<size_t>(bytes);
  void* block = nullptr;
  const cudaError_t status = cudaMalloc(&block, size);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next check would report it again
    size_t free_bytes = 0, total_bytes = 0;
    NMOE_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    throw runtime_error(
        fmt::format("cannot allocate {} of GPU memory: {} of {} are free", human_bytes(bytes),
                    human_bytes(static_cast<int64_t>(free_bytes)), human_bytes(static_cast<int64_t>(total_bytes))),
        "lower train.microbatch_seqs or the model's size, or end other programs on this GPU (nvidia-smi)");
  }
  NMOE_CUDA_CHECK(status);
  NMOE_CUDA_CHECK(cudaMemset(block, 0, size));
  NMOE_CUDA_CHECK(cudaDeviceSynchronize());  // streams of their own do not wait for the memset
  return block;
}

void DeviceMemory::release(void* block, int64_t) noexcept {
  if (block == nullptr) return;
  try_make_current(device_index_);  // a thread without a device would get the first one's context
  cudaFree(block);
}

int64_t DeviceMemory::allocation_bytes(int64_t bytes) const { return device_allocation_bytes(bytes); }

void* PinnedMemory::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  make_current(device_index_);
  const auto size = static_cast<size_t>(bytes);
  void* block = nullptr;
  const cudaError_t status = cudaHostAlloc(&block, size, cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next check would report it again
    block = std::malloc(size);
    if (block == nullptr) {
      throw runtime_error(fmt::format("cannot allocate {} of host memory", human_bytes(bytes)),
                          "lower train.microbatch_seqs or the model's size, free memory, or raise the memory limit of "
                          "this process");
    }
  } else {
    NMOE_CUDA_CHECK(status);
  }
  std::memset(block, 0, size);
  return block;
}

void PinnedMemory::release(void* block, int64_t) noexcept {
  if (block == nullptr) return;
  try_make_current(device_index_);
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, block) == cudaSuccess && attributes.type == cudaMemoryTypeHost) {
    cudaFreeHost(block);
  } else {
    std::free(block);
  }
}

}  // namespace nmoe::cuda
