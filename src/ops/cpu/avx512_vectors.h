// Vectors of AVX-512, for row_products_tiles.h and gemm_tiles.h. As if static: see there.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace nmoe::cpu {
namespace {

struct Floats {
  using Real = float;
  using Type = __m512;
  using Mask = __mmask16;
  static constexpr int64_t kLanes = 16, kTileRows = 4, kGemmRows = 14;

  static Type zero() { return _mm512_setzero_ps(); }
  static Type broadcast(const float* x) { return _mm512_set1_ps(*x); }
  static Type load(const float* x) { return _mm512_loadu_ps(x); }
  static Type load(const float* x, Mask mask) { return _mm512_maskz_loadu_ps(mask, x); }
  static void store(float* x, Type v) { _mm512_storeu_ps(x, v); }
  static void store(float* x, Mask mask, Type v) { _mm512_mask_storeu_ps(x, mask, v); }
  static Type multiply(Type a, Type b) { return _mm512_mul_ps(a, b); }
  static Type multiply_add(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
  // The first `count` lanes: none when it is negative, at most all.
  static Mask first(int64_t count) {
    if (count <= 0) return 0;
    return count >= kLanes ? static_cast<Mask>(~0U) : static_cast<Mask>((1U << count) - 1U);
  }
  // x[i] lane j and x[j] lane i change places.
  static void transpose(Type* x) {
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; i += 4) {  // x[i + r] becomes, of rows i ... i + 3, columns r, 4 + r, 8 + r and 12 + r
      const Type ab_low = _mm512_unpacklo_ps(x[i], x[i + 1]), ab_high = _mm512_unpackhi_ps(x[i], x[i + 1]);
      const Type cd_low = _mm512_unpacklo_ps(x[i + 2], x[i + 3]), cd_high = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
      x[i] = _mm512_shuffle_ps(ab_low, cd_low, 0x44);
      x[i + 1] = _mm512_shuffle_ps(ab_low, cd_low, 0xEE);
      x[i + 2] = _mm512_shuffle_ps(ab_high, cd_high, 0x44);
      x[i + 3] = _mm512_shuffle_ps(ab_high, cd_high, 0xEE);
    }
    Type y[kLanes];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const Type top_even = _mm512_shuffle_f32x4(x[r], x[4 + r], 0x88),
                 top_odd = _mm512_shuffle_f32x4(x[r], x[4 + r], 0xDD);
      const Type low_even = _mm512_shuffle_f32x4(x[8 + r], x[12 + r], 0x88),
                 low_odd = _mm512_shuffle_f32x4(x[8 + r], x[12 + r], 0xDD);
      y[r] = _mm512_shuffle_f32x4(top_even, low_even, 0x88);
      y[4 + r] = _mm512_shuffle_f32x4(top_odd, low_odd, 0x88);
      y[8 + r] = _mm512_shuffle_f32x4(top_even, low_even, 0xDD);
      y[12 + r] = _mm512_shuffle_f32x4(top_odd, low_odd, 0xDD);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) x[i] = y[i];
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
  // As of floats; only proofs are in double.
  static void transpose(Type* x) {
    alignas(64) double rows[kLanes][kLanes], columns[kLanes][kLanes];
    for (int i = 0; i < kLanes; ++i) _mm512_store_pd(rows[i], x[i]);
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < kLanes; ++j) columns[i][j] = rows[j][i];
    }
    for (int i = 0; i < kLanes; ++i) x[i] = _mm512_load_pd(columns[i]);
  }
};

}  // namespace
}  // namespace nmoe::cpu
