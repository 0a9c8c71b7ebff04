// Many tensors in one launch: a table of them in the kernel's parameters, by which a block finds its own. Up to 32 KB
// of parameters come with a launch (CUDA 12.1 on, Volta on), and stay with a recording of it.
#pragma once

#include <cstdint>
#include <limits>

#include "base/error.h"

namespace nmoe::cuda {

constexpr int kTableBytes = 16 << 10;  // not to be exceeded by much

// A kernel takes it as `const __grid_constant__ TensorTable<Entry>`: elsewhere it would be copied for each thread.
template <class Entry>
struct TensorTable {
  static constexpr int kCapacity = kTableBytes / static_cast<int>(sizeof(Entry) + sizeof(unsigned));

  // Host: an entry with this many blocks, which may be none. Room for it: !is_full(num_blocks).
  void add(const Entry& entry, int64_t blocks) {
    NMOE_CHECK(blocks >= 0 && !is_full(blocks), "{} blocks behind {} of {} tensors", blocks, num_blocks, count);
    first_block[count] = static_cast<unsigned>(num_blocks);
    entries[count++] = entry;
    num_blocks += blocks;
  }
  bool is_full(int64_t blocks) const {
    return count == kCapacity || num_blocks + blocks > std::numeric_limits<int32_t>::max();
  }

  void clear() { count = 0, num_blocks = 0; }

  // The index of the entry that a block of the grid belongs to.
  __device__ int find(unsigned block) const {
    int found = 0, end = count;
    while (end - found > 1) {
      const int middle = (found + end) / 2;
      (first_block[middle] <= block ? found : end) = middle;
    }
    return found;
  }

  Entry entries[kCapacity];
  unsigned first_block[kCapacity];  // of each entry
  int count = 0;
  int64_t num_blocks = 0;
};

}  // namespace nmoe::cuda
