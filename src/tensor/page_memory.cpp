#include "tensor/page_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "base/thread_pool.h"

namespace nmoe {
namespace {

constexpr int64_t kTouchedAtOnce = int64_t{64} << 20;

// 0, or the number of the error. To write into pages that are not there ends the process, where asking does not.
int touch(char* begin, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  if (madvise(begin, size, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  std::memset(begin, 0, size);  // before Linux 5.14
  return 0;
}

int touch_by_all(char* block, int64_t bytes) {
  const int64_t num_tasks = (bytes + kTouchedAtOnce - 1) / kTouchedAtOnce;
  std::atomic<int> error{0};
  ThreadPool threads(static_cast<int>(std::min<int64_t>(num_tasks, available_cpus())));
  threads.parallel_for(num_tasks, [&](int64_t task, int) {
    const int64_t begin = task * kTouchedAtOnce;
    const int failed = touch(block + begin, std::min(kTouchedAtOnce, bytes - begin));
    if (failed != 0) error = failed;
  });
  return error;
}

}  // namespace

void* PageMemory::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  const auto size = static_cast<size_t>(bytes);
  void* const block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool mapped = block != MAP_FAILED;
  if (mapped) madvise(block, size, MADV_HUGEPAGE);  // fewer TLB misses where the system allows it; a wish, so no check
  const int error = mapped ? touch_by_all(static_cast<char*>(block), bytes) : errno;
  if (error == 0) return block;
  if (mapped) munmap(block, size);
  throw runtime_error(fmt::format("cannot allocate {} of host memory: {}", human_bytes(bytes), std::strerror(error)),
                      "lower train.microbatch_seqs or the model's size, free memory, or raise the memory limit of this "
                      "process or container");
}

void PageMemory::release(void* block, int64_t bytes) noexcept {
  if (block != nullptr) munmap(block, static_cast<size_t>(bytes));
}

}  // namespace nmoe
