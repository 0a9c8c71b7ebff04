// Where rows that are picked come from, seen from their sources: OperandRows::row_of (contracts/linear.h).
#pragma once

#include <algorithm>
#include <vector>

#include "support/tensors.h"

namespace nmoe::test {

// [num_sources, K] i32 on the host: of rows 0 to num_rows - 1, row r is row index[r], index [R] i32 on the host.
inline Tensor row_of(TensorPool& pool, const Tensor& index, int64_t num_rows, int64_t num_sources) {
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(num_sources));
  for (int64_t row = 0; row < num_rows; ++row) rows[static_cast<size_t>(index.data<int32_t>()[row])].push_back(row);
  size_t copies = 1;
  for (const std::vector<int64_t>& of : rows) copies = std::max(copies, of.size());
  std::vector<double> values;
  for (const std::vector<int64_t>& of : rows) {
    for (size_t k = 0; k < copies; ++k) values.push_back(k < of.size() ? static_cast<double>(of[k]) : -1.0);
  }
  return pool.ints({num_sources, static_cast<int64_t>(copies)}, values);
}

}  // namespace nmoe::test
