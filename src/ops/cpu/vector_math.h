// Elementary functions that the compiler can put inside vector loops (no calls, no tables, and branches only of the
// kind that becomes a select, under -fno-trapping-math and -fopenmp-simd, as nmoe_ops is compiled), and reductions of
// vectors.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace nmoe::cpu {

// e^x. double: std::exp, for proofs. float: within 2 ulp of the true value; results below 1.7e-38 (near the smallest
// normal number) are 0, results beyond the largest float are +inf, NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln(2) / 2 (Cody and Waite's two-part ln 2), e^r by the minimax polynomial of Cephes' expf,
// 2^n by writing the exponent field.
template <class Real>
inline Real exp_approx(Real x) {
  if constexpr (std::is_same_v<Real, float>) {
    constexpr float kLowest = -87.3365f;    // rounds to n = -126, which the scaling below turns into 0
    constexpr float kHighest = 88.8f;       // rounds to n = 128 with e^r > 1, which overflows to +inf
    constexpr float kRounder = 12582912.f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    x = kLowest > x ? kLowest : x;          // the form of max and min that lets a NaN through
    x = kHighest < x ? kHighest : x;
    const float rounded = x * 1.44269504f + kRounder;
    const float n = rounded - kRounder;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    // 2^(n - 1), because the exponent field of 2^128 does not exist; the low bits of kRounder shift out.
    const uint32_t exponent = (std::bit_cast<uint32_t>(rounded) << 23) + (126U << 23);
    return (p + p) * std::bit_cast<float>(exponent);
  } else {
    return std::exp(x);
  }
}

// The sum of a[i] * b[i]; 0 when there is none.
template <class Real>
inline Real dot(const Real* a, const Real* b, int64_t size) {
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

// The largest of x[0] ... x[size - 1]; -inf when there is none. NaN is passed over.
template <class Real>
inline Real highest_of(const Real* x, int64_t size) {
  Real highest = -std::numeric_limits<Real>::infinity();
#pragma omp simd reduction(max : highest)
  for (int64_t i = 0; i < size; ++i) highest = x[i] > highest ? x[i] : highest;  // std::max stays scalar
  return highest;
}

}  // namespace nmoe::cpu
