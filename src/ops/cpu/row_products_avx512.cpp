// Compiled for x86-64-v4 (ops/CMakeLists.txt), and called only on processors that have it.
#include <immintrin.h>

#include "ops/cpu/row_products_tiles.h"

namespace nmoe::cpu {
namespace {

struct Floats {
  using Real = float;
  using Type = __m512;
  using Mask = __mmask16;
  static constexpr int64_t kLanes = 16, kTileRows = 4;

  static Type zero() { return _mm512_setzero_ps(); }
  static Type broadcast(const float* x) { return _mm512_set1_ps(*x); }
  static Type load(const float* x) { return _mm512_loadu_ps(x); }
  static Type load(const float* x, Mask mask) { return _mm512_maskz_loadu_ps(mask, x); }
  static void store(float* x, Type v) { _mm512_storeu_ps(x, v); }
  static void store(float* x, Mask mask, Type v) { _mm512_mask_storeu_ps(x, mask, v); }
  static Type multiply_add(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
  // The first `count` lanes: none when it is negative, at most all.
  static Mask first(int64_t count) {
    if (count <= 0) return 0;
    return count >= kLanes ? static_cast<Mask>(~0U) : static_cast<Mask>((1U << count) - 1U);
  }
  // The two halves of the lanes, added.
  static __m256 fold(Type v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }
  // sums[i] = the sum of v[i]'s lanes, i < 4.
  static void sum_lanes(const Type* v, float* sums) {
    const __m256 halves =
        _mm256_hadd_ps(_mm256_hadd_ps(fold(v[0]), fold(v[1])), _mm256_hadd_ps(fold(v[2]), fold(v[3])));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }
};

struct Doubles {
  using Real = double;
  using Type = __m512d;
  using Mask = __mmask8;
  static constexpr int64_t kLanes = 8, kTileRows = 4;

  static Type zero() { return _mm512_setzero_pd(); }
  static Type broadcast(const double* x) { return _mm512_set1_pd(*x); }
  static Type load(const double* x) { return _mm512_loadu_pd(x); }
  static Type load(const double* x, Mask mask) { return _mm512_maskz_loadu_pd(mask, x); }
  static void store(double* x, Type v) { _mm512_storeu_pd(x, v); }
  static void store(double* x, Mask mask, Type v) { _mm512_mask_storeu_pd(x, mask, v); }
  static Type multiply_add(Type a, Type b, Type c) { return _mm512_fmadd_pd(a, b, c); }
  static Mask first(int64_t count) {
    if (count <= 0) return 0;
    return count >= kLanes ? static_cast<Mask>(~0U) : static_cast<Mask>((1U << count) - 1U);
  }
  static void sum_lanes(const Type* v, double* sums) {
    for (int i = 0; i < 4; ++i) {
      const __m256d half = _mm256_add_pd(_mm512_castpd512_pd256(v[i]), _mm512_extractf64x4_pd(v[i], 1));
      const __m128d quarter = _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
      sums[i] = _mm_cvtsd_f64(_mm_add_sd(quarter, _mm_unpackhi_pd(quarter, quarter)));
    }
  }
};

}  // namespace

template <>
const RowProducts<float>& avx512_row_products<float>() {
  static constexpr RowProducts<float> kProducts{dot_rows_of<Floats>, combine_rows_of<Floats>};
  return kProducts;
}
template <>
const RowProducts<double>& avx512_row_products<double>() {
  static constexpr RowProducts<double> kProducts{dot_rows_of<Doubles>, combine_rows_of<Doubles>};
  return kProducts;
}

}  // namespace nmoe::cpu
