#include "ops/cpu/row_products.h"

#include "ops/cpu/avx2_vectors.h"
#include "ops/cpu/row_products_tiles.h"

namespace nmoe::cpu {
namespace {

template <class Real>
const RowProducts<Real>& best() {
  static const RowProducts<Real> products = has_avx512() ? avx512_row_products<Real>() : avx2_row_products<Real>();
  return products;
}

}  // namespace

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512cd") != 0;
}

template <>
const RowProducts<float>& avx2_row_products<float>() {
  static constexpr RowProducts<float> kProducts{dot_rows_of<Floats>, combine_rows_of<Floats>};
  return kProducts;
}
template <>
const RowProducts<double>& avx2_row_products<double>() {
  static constexpr RowProducts<double> kProducts{dot_rows_of<Doubles>, combine_rows_of<Doubles>};
  return kProducts;
}

template <class Real>
void dot_rows(int64_t m, int64_t n, int64_t depth, Real alpha, Rows<const Real> a, Rows<const Real> b, Rows<Real> c,
              bool accumulate) {
  best<Real>().dot(m, n, depth, alpha, a, b, c, accumulate);
}

template <class Real>
void combine_rows(int64_t m, int64_t n, int64_t depth, Rows<const Real> a, Rows<const Real> b, Rows<Real> c,
                  bool goes_on) {
  best<Real>().combine(m, n, depth, a, b, c, goes_on);
}

#define NMOE_INSTANTIATE(Real)                                                                                         \
  template void dot_rows<Real>(int64_t, int64_t, int64_t, Real, Rows<const Real>, Rows<const Real>, Rows<Real>, bool); \
  template void combine_rows<Real>(int64_t, int64_t, int64_t, Rows<const Real>, Rows<const Real>, Rows<Real>, bool);
NMOE_INSTANTIATE(float)
NMOE_INSTANTIATE(double)
#undef NMOE_INSTANTIATE

}  // namespace nmoe::cpu
