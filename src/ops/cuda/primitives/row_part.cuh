// A part of the rows that copies of tokens have by a plan (contracts/moe.h).
#pragma once

#include <cstdint>

namespace nmoe::cuda {

// Rows [first, first + capacity) of those that row_of counts. num_rows: how many of them there are; null where they are
// the first ones.
struct RowPart {
  const int32_t* row_of;
  const int32_t* num_rows;
  int64_t first, capacity;

  __device__ bool is_empty() const { return num_rows != nullptr && *num_rows == 0; }
  // Where among them a copy's row is; negative: it is not.
  __device__ int64_t place(int64_t copy) const {
    const int64_t row = row_of[copy] - first;
    return row < capacity ? row : -1;
  }
};

}  // namespace nmoe::cuda
