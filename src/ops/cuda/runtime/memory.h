// Memory for arenas of CUDA runs.
#pragma once

#include "tensor/arena.h"

namespace nmoe::cuda {

// Memory of one device, which allocate() and release() make current in the calling thread. From any thread.
class DeviceMemory final : public MemorySource {
 public:
  explicit DeviceMemory(int device_index) : device_index_(device_index) {}
  void* allocate(int64_t bytes) override;
  void release(void* block, int64_t bytes) noexcept override;
  int64_t allocation_bytes(int64_t bytes) const override;

 private:
  int device_index_;
};

// Page-locked memory of the host: devices copy to and from it without a stop in between. From any thread.
class PinnedMemory final : public MemorySource {
 public:
  // All devices may use the memory; this one is made current for the calls, since CUDA wants one to be.
  explicit PinnedMemory(int device_index) : device_index_(device_index) {}
  void* allocate(int64_t bytes) override;
  void release(void* block, int64_t bytes) noexcept override;

 private:
  int device_index_;
};

}  // namespace nmoe::cuda
