// Matrix products that treat every row of their left operand alike: a row of the result has the same bits whatever the
// other rows are and however many. For few rows they are also faster than a general product, which packs its operands
// first. One thread; float and double.
#pragma once

#include <cstdint>

namespace nmoe::cpu {

// A row-major matrix whose rows lie `stride` elements apart.
template <class Real>
struct Rows {
  Real* data;
  int64_t stride;

  Real* operator[](int64_t row) const { return data + row * stride; }
};

// c[i][j] = or += alpha * (a[i] . b[j]) for i < m, j < n, over `depth` elements. c overlaps neither a nor b.
template <class Real>
void dot_rows(int64_t m, int64_t n, int64_t depth, Real alpha, Rows<const Real> a, Rows<const Real> b, Rows<Real> c,
              bool accumulate);

// c[i] = sum over j < depth of a[i][j] * b[j], rows of `n` elements, for i < m. The sum goes from j = 0 on.
template <class Real>
void combine_rows(int64_t m, int64_t n, int64_t depth, Rows<const Real> a, Rows<const Real> b, Rows<Real> c);

}  // namespace nmoe::cpu
