// Matrices as products of rows take them.
#pragma once

#include <cstdint>

namespace nmoe::cpu {

// A row-major matrix whose rows lie `stride` elements apart.
template <class Real>
struct Rows {
  Real* data;
  int64_t stride;

  // As if static: code for one instruction set must not be linked into another's callers.
  [[gnu::always_inline]] Real* operator[](int64_t row) const { return data + row * stride; }
};

}  // namespace nmoe::cpu
