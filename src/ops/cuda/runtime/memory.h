// Memory for arenas of CUDA runs.
#pragma once

#include "tensor/arena.h"

namespace nmoe::cuda {

// Memory of the current device.
class DeviceMemory final : public MemorySource {
 public:
  void* allocate(int64_t bytes) override;
  void release(void* block, int64_t bytes) noexcept override;
  int64_t allocation_bytes(int64_t bytes) const override;
};

// Page-locked memory of the host: the device copies to and from it without a stop in between.
class PinnedMemory final : public MemorySource {
 public:
  void* allocate(int64_t bytes) override;
  void release(void* block, int64_t bytes) noexcept override;
};

}  // namespace nmoe::cuda
