// What a product with the gradient of experts' weights says of its squares, against those that it left.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "ops/contracts/linear.h"
#include "support/tensors.h"

namespace nmoe::test {

// Where a product leaves them, of gradients of this shape: NaN before.
inline Tensor poisoned_squares(TensorPool& pool, const Shape& gradients) {
  const Tensor squares = pool.zeros(DType::kF64, square_parts(gradients));
  std::ranges::fill(squares.span<double>(), std::numeric_limits<double>::quiet_NaN());
  return squares;
}

// squares: as GroupedLinearBackwardWeight leaves them of dw [E, rows, cols], both in host memory.
inline void expect_squares(const Tensor& squares, const Tensor& dw, double tolerance) {
  ASSERT_EQ(squares.shape(), square_parts(dw.shape()));
  const int64_t rows = dw.dim(1), cols = dw.dim(2), part_rows = squares.dim(1), part_cols = squares.dim(2);
  std::vector<double> expected(static_cast<size_t>(squares.num_elements()));
  for (int64_t i = 0; i < dw.num_elements(); ++i) {
    const int64_t expert = i / (rows * cols), row = i / cols % rows, col = i % cols;
    const int64_t part = (expert * part_rows + row / kSquareRows) * part_cols + col / kSquareCols;
    expected[static_cast<size_t>(part)] += get(dw, i) * get(dw, i);
  }
  for (int64_t i = 0; i < squares.num_elements(); ++i) {
    const double sum = expected[static_cast<size_t>(i)];
    EXPECT_NEAR(get(squares, i), sum, tolerance * sum) << "part " << i;
  }
}

}  // namespace nmoe::test
