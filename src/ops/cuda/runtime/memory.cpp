#include "ops/cuda/runtime/memory.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "ops/cuda/kernel_set.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/current_device.h"

namespace nmoe::cuda {
namespace {

// Zeroed; null where the host has no more memory to lock.
void* try_to_pin(int device_index, int64_t bytes) {
  make_current(device_index);
  void* block = nullptr;
  const cudaError_t status = cudaHostAlloc(&block, static_cast<size_t>(bytes), cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next check would report it again
    return nullptr;
  }
  NMOE_CUDA_CHECK(status);
  std::memset(block, 0, static_cast<size_t>(bytes));
  return block;
}

}  // namespace

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

void* MappedMemory::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* const block = try_to_pin(device_index_, bytes);
  if (block == nullptr) {
    throw runtime_error(fmt::format("cannot pin {} of host memory, which GPUs then reach", human_bytes(bytes)),
                        "free memory of the host, or raise the memory limit of this process or container");
  }
  return block;
}

void MappedMemory::release(void* block, int64_t) noexcept {
  if (block == nullptr) return;
  try_make_current(device_index_);
  cudaFreeHost(block);
}

void* TransferMemory::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  if (void* const pinned = try_to_pin(device_index_, bytes)) return pinned;
  void* const block = std::calloc(static_cast<size_t>(bytes), 1);
  if (block == nullptr) {
    throw runtime_error(fmt::format("cannot allocate {} of host memory", human_bytes(bytes)),
                        "lower train.microbatch_seqs or the model's size, free memory, or raise the memory limit of "
                        "this process");
  }
  return block;
}

void TransferMemory::release(void* block, int64_t) noexcept {
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
