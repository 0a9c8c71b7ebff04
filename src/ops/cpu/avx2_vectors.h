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
  // As of floats; only proofs are in double.
  static void transpose(Type* x) {
    alignas(64) double rows[kLanes][kLanes], columns[kLanes][kLanes];
    for (int i = 0; i < kLanes; ++i) _mm256_store_pd(rows[i], x[i]);
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < kLanes; ++j) columns[i][j] = rows[j][i];
    }
    for (int i = 0; i < kLanes; ++i) x[i] = _mm256_load_pd(columns[i]);
  }
};

}  // namespace
}  // namespace nmoe::cpu
