#include "ops/cpu/row_products.h"

#include <immintrin.h>

#include "ops/cpu/row_products_tiles.h"

namespace nmoe::cpu {
namespace {

struct Floats {
  using Real = float;
  using Type = __m256;
  using Mask = __m256i;
  using Quad = __m128;
  static constexpr int64_t kLanes = 8, kTileRows = 3;

  static Type zero() { return _mm256_setzero_ps(); }
  static Type broadcast(const float* x) { return _mm256_broadcast_ss(x); }
  static Type load(const float* x) { return _mm256_loadu_ps(x); }
  static Type load(const float* x, Mask mask) { return _mm256_maskload_ps(x, mask); }
  static void store(float* x, Type v) { _mm256_storeu_ps(x, v); }
  static void store(float* x, Mask mask, Type v) { _mm256_maskstore_ps(x, mask, v); }
  static Type multiply_add(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
  // The first `count` lanes: none when it is negative, at most all.
  static Mask first(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  // The sums of the lanes of v[0] ... v[3].
  static Quad sum_lanes(const Type* v) {
    const Type ab = _mm256_add_ps(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
    const Type cd = _mm256_add_ps(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
    const Type abcd = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
  }
  static Quad zero_quad() { return _mm_setzero_ps(); }
  static Quad load_quad(const float* x) { return _mm_loadu_ps(x); }
  static void store_quad(float* x, Quad v) { _mm_storeu_ps(x, v); }
  static Quad scale_quad(float alpha, Quad v, Quad c) { return _mm_fmadd_ps(_mm_set1_ps(alpha), v, c); }
};

struct Doubles {
  using Real = double;
  using Type = __m256d;
  using Mask = __m256i;
  using Quad = __m256d;
  static constexpr int64_t kLanes = 4, kTileRows = 3;

  static Type zero() { return _mm256_setzero_pd(); }
  static Type broadcast(const double* x) { return _mm256_broadcast_sd(x); }
  static Type load(const double* x) { return _mm256_loadu_pd(x); }
  static Type load(const double* x, Mask mask) { return _mm256_maskload_pd(x, mask); }
  static void store(double* x, Type v) { _mm256_storeu_pd(x, v); }
  static void store(double* x, Mask mask, Type v) { _mm256_maskstore_pd(x, mask, v); }
  static Type multiply_add(Type a, Type b, Type c) { return _mm256_fmadd_pd(a, b, c); }
  static Mask first(int64_t count) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
  }
  static Quad sum_lanes(const Type* v) {
    const Type ab = _mm256_add_pd(_mm256_unpacklo_pd(v[0], v[1]), _mm256_unpackhi_pd(v[0], v[1]));
    const Type cd = _mm256_add_pd(_mm256_unpacklo_pd(v[2], v[3]), _mm256_unpackhi_pd(v[2], v[3]));
    return _mm256_add_pd(_mm256_permute2f128_pd(ab, cd, 0x20), _mm256_permute2f128_pd(ab, cd, 0x31));
  }
  static Quad zero_quad() { return _mm256_setzero_pd(); }
  static Quad load_quad(const double* x) { return _mm256_loadu_pd(x); }
  static void store_quad(double* x, Quad v) { _mm256_storeu_pd(x, v); }
  static Quad scale_quad(double alpha, Quad v, Quad c) { return _mm256_fmadd_pd(_mm256_set1_pd(alpha), v, c); }
};

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
void combine_rows(int64_t m, int64_t n, int64_t depth, Rows<const Real> a, Rows<const Real> b, Rows<Real> c) {
  best<Real>().combine(m, n, depth, a, b, c);
}

#define NMOE_INSTANTIATE(Real)                                                                                         \
  template void dot_rows<Real>(int64_t, int64_t, int64_t, Real, Rows<const Real>, Rows<const Real>, Rows<Real>, bool); \
  template void combine_rows<Real>(int64_t, int64_t, int64_t, Rows<const Real>, Rows<const Real>, Rows<Real>);
NMOE_INSTANTIATE(float)
NMOE_INSTANTIATE(double)
#undef NMOE_INSTANTIATE

}  // namespace nmoe::cpu
