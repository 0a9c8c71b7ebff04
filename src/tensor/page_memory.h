// Memory of the host for arenas.
#pragma once

#include "tensor/arena.h"

namespace nmoe {

// Anonymous pages, huge where the system allows, touched at allocation so that planned bytes are resident bytes and no
// step pays a page fault. All CPUs touch them: pages are zeroed then, one after the other by a single one.
class PageMemory final : public MemorySource {
 public:
  // Error (runtime): the system has no such range, or no pages for it.
  void* allocate(int64_t bytes) override;
  void release(void* block, int64_t bytes) noexcept override;
};

}  // namespace nmoe
