// Muon's orthogonalisation as its definition has it, in plain loops and double precision.
#pragma once

#include <cmath>

#include "ops/matrix.h"
#include "support/tensors.h"
#include "tensor/convert.h"

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

inline double to_bf16(double value) { return bf16_to_float(float_to_bf16(static_cast<float>(value))); }

// With matrices in BF16 (MuonStep::products).
inline Matrix newton_schulz_in_bf16(const Matrix& direction, int iterations) {
  const bool tall = direction.size() > direction[0].size();
  Matrix x = tall ? transposed(direction) : direction;
  double sum = 0;
  for (const auto& row : x) {
    for (const double value : row) sum += value * value;
  }
  const double norm = std::sqrt(sum) + 1e-7;
  for (auto& row : x) {
    for (double& value : row) value = to_bf16(value / norm);
  }
  for (int iteration = 0; iteration < iterations; ++iteration) {
    Matrix gram = times(x, transposed(x));
    for (auto& row : gram) {
      for (double& value : row) value = to_bf16(value);
    }
    Matrix poly = times(gram, gram);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) poly[i][j] = to_bf16(-4.7750 * gram[i][j] + 2.0315 * poly[i][j]);
    }
    const Matrix moved = times(poly, x);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x[0].size(); ++j) x[i][j] = to_bf16(3.4445 * x[i][j] + moved[i][j]);
    }
  }
  return tall ? transposed(x) : x;
}

// |a - b| / |b|, in the Euclidean norm: how far updates with roundings in BF16 are apart. Element by element nothing
// holds. A sum that falls near the middle of two of BF16's numbers is rounded to either, and an iteration multiplies
// small singular values, with what was rounded, by up to 3.4.
inline double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double squares = 0, difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    squares += b[i] * b[i];
    difference += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return difference == 0 ? 0 : std::sqrt(difference / squares);
}

// The most that this may be between devices: of one iteration, or of five.
inline double most_bf16_distance(int iterations) { return iterations == 1 ? 5e-4 : 1.5e-2; }

// A tensor [rows, cols].
inline Matrix matrix_of(Tensor x) {
  Matrix result = zeros(static_cast<size_t>(x.dim(0)), static_cast<size_t>(x.dim(1)));
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    result[static_cast<size_t>(i / x.dim(1))][static_cast<size_t>(i % x.dim(1))] = get(x, i);
  }
  return result;
}

}  // namespace nmoe::test
