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

// Page-locked memory of the host, in every device's address space: kernels read and write it where it lies. From any
// thread.
class MappedMemory final : public MemorySource {
 public:
  // One device is made current for the calls, since CUDA wants one to be.
  explicit MappedMemory(int device_index) : device_index_(device_index) {}
  void* allocate(int64_t bytes) override;
  void release(void* block, int64_t bytes) noexcept override;

 private:
  int device_index_;
};

// Memory of the host that devices copy to and from, without a stop in between if it is page-locked; where so much
// cannot be, it is not. From any thread.
class TransferMemory final : public MemorySource {
 public:
  explicit TransferMemory(int device_index) : device_index_(device_index) {}
  void* allocate(int64_t bytes) override;
  void release(void* block, int64_t bytes) noexcept override;

 private:
  int device_index_;
};

}  // namespace nmoe::cuda
