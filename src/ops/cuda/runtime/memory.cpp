#include "ops/cuda/runtime/memory.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "base/text.h"
#include "ops/cuda/kernel_set.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/current_device.h"
#include "tensor/page_memory.h"

namespace nmoe::cuda {
namespace {

// Pages of the host that go back unless they are taken.
class Pages {
 public:
  explicit Pages(int64_t bytes) : bytes_(bytes), block_(PageMemory().allocate(bytes)) {}
  ~Pages() { PageMemory().release(block_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  void* get() const { return block_; }
  void* take() { return std::exchange(block_, nullptr); }

 private:
  int64_t bytes_;
  void* block_;
};

// False where the host has no more memory to lock.
bool lock_pages(int device_index, void* block, int64_t bytes) {
  make_current(device_index);
  const cudaError_t status =
      cudaHostRegister(block, static_cast<size_t>(bytes), cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (status == cudaErrorMemoryAllocation || status == cudaErrorOperatingSystem) {
    cudaGetLastError();  // or the next check would report it again
    return false;
  }
  NMOE_CUDA_CHECK(status);
  return true;
}

void unlock_pages(int device_index, void* block) {
  try_make_current(device_index);
  cudaHostUnregister(block);
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
  Pages pages(bytes);
  if (bytes == 0 || lock_pages(device_index_, pages.get(), bytes)) return pages.take();
  throw runtime_error(fmt::format("cannot pin {} of host memory, which GPUs then reach", human_bytes(bytes)),
                      "free memory of the host, or raise the memory limit of this process or container");
}

void MappedMemory::release(void* block, int64_t bytes) noexcept {
  if (block == nullptr) return;
  unlock_pages(device_index_, block);
  PageMemory().release(block, bytes);
}

void* TransferMemory::allocate(int64_t bytes) {
  Pages pages(bytes);
  if (bytes > 0) lock_pages(device_index_, pages.get(), bytes);
  return pages.take();
}

void TransferMemory::release(void* block, int64_t bytes) noexcept {
  if (block == nullptr) return;
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, block) == cudaSuccess && attributes.type == cudaMemoryTypeHost) {
    unlock_pages(device_index_, block);
  }
  PageMemory().release(block, bytes);
}

}  // namespace nmoe::cuda
