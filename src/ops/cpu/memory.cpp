#include "ops/cpu/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"

namespace nmoe::cpu {

void* PageMemory::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  const auto size = static_cast<size_t>(bytes);
  void* block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) {
    throw runtime_error(fmt::format("cannot allocate {}: {}", human_bytes(bytes), std::strerror(errno)),
                        "lower train.microbatch_seqs or the model's size, or free memory");
  }
  madvise(block, size, MADV_HUGEPAGE);  // fewer TLB misses where the system allows it; a wish, so no check
  if (madvise(block, size, MADV_POPULATE_WRITE) != 0) std::memset(block, 0, size);  // before Linux 5.14
  return block;
}

void PageMemory::release(void* block, int64_t bytes) noexcept {
  if (block != nullptr) munmap(block, static_cast<size_t>(bytes));
}

}  // namespace nmoe::cpu
