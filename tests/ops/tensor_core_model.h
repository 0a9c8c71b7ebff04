// What tensor cores compute, to the bit: the oracle of products in low precision.
//
// After MMA-Sim (arXiv 2511.10909; github.com/microsoft/MMA-Sim, src/mmasim/mmasim: nv_ptx/sim.py for the numbers,
// arithmetic/fdpa.py for the sums), which was held against hardware. A *fused* sum has the products of a chunk of k and
// what was summed before. Each term is cut, toward zero, to a multiple of 2^(E - F), where E is the largest exponent
// of a term and F the fraction bits that the adder keeps; then the terms are added exactly, and the sum is cut, toward
// zero, to the result's fraction bits. A product's exponent is the sum of its factors', before it is normalised.
//
//   instruction                      chunk                     F   result's fraction
//   Hopper wgmma, E4M3               32                        13  13
//   Hopper wgmma, BF16               16                        25  23
//   Blackwell tcgen05, MXFP8         32                        25  23
//   Blackwell tcgen05, NVFP4         64: exact sums of 16      35  23
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tensor/convert.h"
#include "tensor/low_precision.h"

namespace nmoe::test {

// fraction * 2^exponent, the fraction in [1, 2), or below where the exponent is the format's least.
struct Scaled {
  double fraction;
  int exponent;
};

inline Scaled scaled(double x, int least_exponent) {
  if (x == 0 || !std::isfinite(x)) return {x, least_exponent};
  const int exponent = std::max(std::ilogb(x), least_exponent);
  return {std::ldexp(x, -exponent), exponent};
}
constexpr int kE4M3LeastExponent = -6, kF32LeastExponent = -126;

inline Scaled operator*(const Scaled& a, const Scaled& b) { return {a.fraction * b.fraction, a.exponent + b.exponent}; }

struct Adder {
  int fraction_bits;         // F
  int result_fraction_bits;  // of a float's 23

  float sum(std::span<const Scaled> terms) const {
    int largest = -1000;
    double total = 0;
    for (const Scaled& term : terms) {
      if (!std::isfinite(term.fraction)) total += term.fraction;
      if (term.fraction != 0) largest = std::max(largest, term.exponent);
    }
    if (!std::isfinite(total)) {
      return std::isnan(total) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(total);
    }
    for (const Scaled& term : terms) {
      total += std::trunc(std::ldexp(term.fraction, term.exponent - largest + fraction_bits));  // exact in a double
    }
    if (total == 0) return 0.0F;
    const Scaled result = scaled(std::ldexp(total, largest - fraction_bits), kF32LeastExponent);
    const double cut = std::trunc(std::ldexp(result.fraction, result_fraction_bits));
    return static_cast<float>(std::ldexp(cut, result.exponent - result_fraction_bits));
  }
};

// c + the products of a and b, chunk by chunk. product(i): that of element i.
template <class Product>
float fused_dot(const Adder& adder, int64_t size, int64_t chunk, const Product& product, float c) {
  for (int64_t begin = 0; begin < size; begin += chunk) {
    std::vector<Scaled> terms{scaled(c, kF32LeastExponent)};
    for (int64_t i = begin; i < std::min(begin + chunk, size); ++i) terms.push_back(product(static_cast<size_t>(i)));
    c = adder.sum(terms);
  }
  return c;
}

inline Scaled scaled_e4m3(uint8_t code) { return scaled(static_cast<double>(e4m3_to_float(code)), kE4M3LeastExponent); }

inline float hopper_e4m3_dot(std::span<const uint8_t> a, std::span<const uint8_t> b, float c = 0.0F) {
  const auto product = [&](size_t i) { return scaled_e4m3(a[i]) * scaled_e4m3(b[i]); };
  return fused_dot({.fraction_bits = 13, .result_fraction_bits = 13}, std::ssize(a), 32, product, c);
}

// a and b: bits of BF16.
inline float hopper_bf16_dot(std::span<const uint16_t> a, std::span<const uint16_t> b, float c = 0.0F) {
  const auto of = [](uint16_t bits) { return scaled(static_cast<double>(bf16_to_float(bits)), kF32LeastExponent); };
  const auto product = [&](size_t i) { return of(a[i]) * of(b[i]); };
  return fused_dot({.fraction_bits = 25, .result_fraction_bits = 23}, std::ssize(a), 16, product, c);
}

// Scales: a code for each 32 elements.
inline float blackwell_mxfp8_dot(std::span<const uint8_t> a, std::span<const uint8_t> a_scales,
                                 std::span<const uint8_t> b, std::span<const uint8_t> b_scales, float c = 0.0F) {
  const auto scale = [](uint8_t code) { return Scaled{code == 255 ? std::nan("") : 1.0, code - 127}; };
  const auto product = [&](size_t i) {
    return scaled_e4m3(a[i]) * scaled_e4m3(b[i]) * scale(a_scales[i / 32]) * scale(b_scales[i / 32]);
  };
  return fused_dot({.fraction_bits = 25, .result_fraction_bits = 23}, std::ssize(a), 32, product, c);
}

// Elements one a byte; scales: a code for each 16. The sum of 16 products is exact, and has its scales' exponents.
inline float blackwell_nvfp4_dot(std::span<const uint8_t> a, std::span<const uint8_t> a_scales,
                                 std::span<const uint8_t> b, std::span<const uint8_t> b_scales, float c = 0.0F) {
  const auto product = [&](size_t block) {
    double sum = 0;
    for (size_t i = 16 * block; i < std::min(16 * block + 16, a.size()); ++i) {
      sum += static_cast<double>(e2m1_to_float(a[i])) * static_cast<double>(e2m1_to_float(b[i]));
    }
    return Scaled{sum, 0} * scaled_e4m3(a_scales[block]) * scaled_e4m3(b_scales[block]);
  };
  return fused_dot({.fraction_bits = 35, .result_fraction_bits = 23}, (std::ssize(a) + 15) / 16, 64 / 16, product, c);
}

}  // namespace nmoe::test
