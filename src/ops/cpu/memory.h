// Host memory for arenas.
#pragma once

#include "tensor/arena.h"

namespace nmoe::cpu {

// Anonymous pages, huge where the system allows, touched at allocation so that planned bytes are resident bytes and no
// step pays a page fault.
class PageMemory final : public MemorySource {
 public:
  void* allocate(int64_t bytes) override;
  void release(void* block, int64_t bytes) noexcept override;
};

}  // namespace nmoe::cpu
