// Matrices as definitions in tests write them: rows of numbers.
#pragma once

#include <cstddef>
#include <vector>

namespace nmoe::test {

using Matrix = std::vector<std::vector<double>>;

inline Matrix transposed(const Matrix& x) {
  Matrix y(x.empty() ? 0 : x[0].size(), std::vector<double>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < x[i].size(); ++j) y[j][i] = x[i][j];
  }
  return y;
}

}  // namespace nmoe::test
