// A tile of 128 x 128 codes, which a block of threads turns over in shared memory: written by rows, read by columns.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nmoe::cuda {

// The bytes of four words as columns: columns[i] has byte i of each.
__device__ inline void transpose_bytes(const uint32_t (&rows)[4], uint32_t (&columns)[4]) {
  const uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140), high01 = __byte_perm(rows[0], rows[1], 0x7362),
                 low23 = __byte_perm(rows[2], rows[3], 0x5140), high23 = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(low01, low23, 0x5410);
  columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410);
  columns[3] = __byte_perm(high01, high23, 0x7632);
}

class CodeTile {
 public:
  static constexpr int kSize = 128;
  static constexpr int kThreads = 256;  // of the block

  // Eight codes of a row, from a multiple of 8 on.
  __device__ void store(int row, int col, const uint2& codes) {
    *reinterpret_cast<uint2*>(&words_[row][place(row, col / 4)]) = codes;
  }
  // Behind a barrier. Calls fn(column, first row, codes) with 16 rows of four columns; together the threads have all.
  // Eight threads that are next to each other have a column.
  template <class Fn>
  __device__ void read_columns(const Fn& fn) const {
    constexpr int kSegments = kSize / 16;  // of a column
    static_assert(kThreads == kWords * kSegments, "a thread turns over a word of 16 rows");
    const int segment = static_cast<int>(threadIdx.x) % kSegments, word = static_cast<int>(threadIdx.x) / kSegments;
    uint32_t columns[4][4];  // of the word's four columns, a word for each four rows
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t four_rows[4], four_columns[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = segment * 16 + 4 * i + j;
        four_rows[j] = words_[row][place(row, word)];
      }
      transpose_bytes(four_rows, four_columns);
#pragma unroll
      for (int j = 0; j < 4; ++j) columns[j][i] = four_columns[j];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      fn(word * 4 + j, segment * 16, make_uint4(columns[j][0], columns[j][1], columns[j][2], columns[j][3]));
    }
  }

 private:
  static constexpr int kWords = kSize / 4;  // of a row

  // Where a row's word is: columns of words from all segments are in different banks, and two neighbours stay
  // neighbours.
  __device__ static int place(int row, int word) { return word ^ (row / 16 * 4 % kWords); }

  alignas(16) uint32_t words_[kSize][kWords];
};

}  // namespace nmoe::cuda
