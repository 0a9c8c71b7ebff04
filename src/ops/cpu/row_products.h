// Matrix products for few rows of the left operand, where they are faster than a general product, which packs its
// operands first. One thread; float and double. In float, an element of dot_rows has the bits that gemm
// (ops/cpu/gemm.h) gives it.
#pragma once

#include <cstdint>

#include "ops/cpu/rows.h"

namespace nmoe::cpu {

// What one instruction set has to offer.
template <class Real>
struct RowProducts {
  // c[i][j] = or += alpha * (a[i] . b[j]) for i < m, j < n, over `depth` elements, in the order of products
  // (contracts/linear.h). c overlaps neither a nor b.
  void (*dot)(int64_t m, int64_t n, int64_t depth, Real alpha, Rows<const Real> a, Rows<const Real> b, Rows<Real> c,
              bool accumulate);
  // c[i] = sum over j < depth of a[i][j] * b[j], rows of `n` elements, for i < m. The sum goes from j = 0 on, and from
  // what c[i] holds where it `goes_on`: terms in two calls make the sum that they make in one.
  void (*combine)(int64_t m, int64_t n, int64_t depth, Rows<const Real> a, Rows<const Real> b, Rows<Real> c,
                  bool goes_on);
};

template <class Real>
const RowProducts<Real>& avx2_row_products();
template <class Real>
const RowProducts<Real>& avx512_row_products();  // to be called where has_avx512()
bool has_avx512();

// The best of this processor.
template <class Real>
void dot_rows(int64_t m, int64_t n, int64_t depth, Real alpha, Rows<const Real> a, Rows<const Real> b, Rows<Real> c,
              bool accumulate);
template <class Real>
void combine_rows(int64_t m, int64_t n, int64_t depth, Rows<const Real> a, Rows<const Real> b, Rows<Real> c,
                  bool goes_on);

}  // namespace nmoe::cpu
