// Vectors of AVX2, for row_products_tiles.h and gemm_tiles.h. As if static: see there.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace nmoe::cpu {
namespace {

struct Floats {
  using Real = float;
  using Type = __m256;
  using Mask = __m256i;
  using Quad = __m128;
  static constexpr int64_t kLanes = 8, kTileRows = 3, kGemmRows = 6;

  static Type zero() { return _mm256_setzero_ps(); }
  static Type broadcast(const float* x) { return _mm256_broadcast_ss(x); }
  static Type load(const float* x) { return _mm256_loadu_ps(x); }
  static Type load(const float* x, Mask mask) { return _mm256_maskload_ps(x, mask); }
  static void store(float* x, Type v) { _mm256_storeu_ps(x, v); }
  static void store(float* x, Mask mask, Type v) { _mm256_maskstore_ps(x, mask, v); }
  static Type multiply(Type a, Type b) { return _mm256_mul_ps(a, b); }
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
  // x[i] lane j and x[j] lane i change places.
  static void transpose(Type* x) {
    Type y[kLanes];
#pragma GCC unroll 2
    for (int i = 0; i < kLanes; i += 4) {  // y[i + r]: of rows i ... i + 3, columns r and 4 + r
      const Type ab_low = _mm256_unpacklo_ps(x[i], x[i + 1]), ab_high = _mm256_unpackhi_ps(x[i], x[i + 1]);
      const Type cd_low = _mm256_unpacklo_ps(x[i + 2], x[i + 3]), cd_high = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
      y[i] = _mm256_shuffle_ps(ab_low, cd_low, 0x44);
      y[i + 1] = _mm256_shuffle_ps(ab_low, cd_low, 0xEE);
      y[i + 2] = _mm256_shuffle_ps(ab_high, cd_high, 0x44);
      y[i + 3] = _mm256_shuffle_ps(ab_high, cd_high, 0xEE);
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      x[r] = _mm256_permute2f128_ps(y[r], y[4 + r], 0x20);
      x[4 + r] = _mm256_permute2f128_ps(y[r], y[4 + r], 0x31);
    }
  }
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

}  // namespace
}  // namespace nmoe::cpu
