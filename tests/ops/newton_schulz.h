// Muon's orthogonalisation as its definition has it, in plain loops and double precision.
#pragma once

#include <cmath>

#include "ops/matrix.h"
#include "support/tensors.h"

namespace nmoe::test {

inline Matrix zeros(size_t rows, size_t cols) { return Matrix(rows, std::vector<double>(cols, 0.0)); }

inline Matrix times(const Matrix& a, const Matrix& b) {
  Matrix result = zeros(a.size(), b[0].size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b[0].size(); ++j) {
      for (size_t k = 0; k < b.size(); ++k) result[i][j] += a[i][k] * b[k][j];
    }
  }
  return result;
}

inline Matrix newton_schulz(Matrix x, int iterations) {
  double sum = 0;
  for (const auto& row : x) {
    for (const double value : row) sum += value * value;
  }
  for (auto& row : x) {
    for (double& value : row) value /= std::sqrt(sum) + 1e-7;
  }
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const Matrix cubed = times(times(x, transposed(x)), x);
    const Matrix fifth = times(times(x, transposed(x)), cubed);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x[0].size(); ++j) {
        x[i][j] = 3.4445 * x[i][j] - 4.7750 * cubed[i][j] + 2.0315 * fifth[i][j];
      }
    }
  }
  return x;
}

// A tensor [rows, cols].
inline Matrix matrix_of(Tensor x) {
  Matrix result = zeros(static_cast<size_t>(x.dim(0)), static_cast<size_t>(x.dim(1)));
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    result[static_cast<size_t>(i / x.dim(1))][static_cast<size_t>(i % x.dim(1))] = get(x, i);
  }
  return result;
}

}  // namespace nmoe::test
