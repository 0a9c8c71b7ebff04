// The arithmetic of base/rng.h, for host and device. Only additions, products, fused multiply-adds, quotients and
// roots, which IEEE 754 rounds one way, and no place where a compiler may fuse two of them: every device gets the same
// bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace nmoe::random {

struct Words {
  uint32_t word[4];
};

// Philox4x32-10 for one 128-bit counter and one 64-bit key (Salmon et al., SC'11, section 4.3).
NMOE_HOST_DEVICE inline Words philox4x32(Words counter, uint32_t key0, uint32_t key1) {
  constexpr uint32_t kMul0 = 0xD2511F53U, kMul1 = 0xCD9E8D57U;
  constexpr uint32_t kWeyl0 = 0x9E3779B9U, kWeyl1 = 0xBB67AE85U;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMul0) * counter.word[0];
    const uint64_t p1 = static_cast<uint64_t>(kMul1) * counter.word[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(p0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

// 64 random bits: number `index` of a stream.
NMOE_HOST_DEVICE inline uint64_t bits(uint64_t seed, uint64_t stream, uint64_t index) {
  const Words words = philox4x32({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                                   static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}},
                                 static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return (static_cast<uint64_t>(words.word[0]) << 32) | words.word[1];
}

// 52 of them, centred in their cell: strictly inside (0, 1).
NMOE_HOST_DEVICE inline double to_unit(uint64_t bits) { return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52; }

// log(x) for normal x in (0, 1/2], to a relative 3e-16: x = 2^e m with m around 1, and log m = 2 atanh((m - 1) / (m +
// 1)) by its power series.
NMOE_HOST_DEVICE inline double log_below_half(double x) {
  constexpr uint64_t kOneBits = 0x3FF0000000000000U, kRootHalfBits = 0x3FE6A09E667F3BCDU;
  uint64_t x_bits = 0;
  std::memcpy(&x_bits, &x, sizeof(x));
  const auto exponent = static_cast<int>((x_bits + (kOneBits - kRootHalfBits)) >> 52) - 1023;
  x_bits -= static_cast<uint64_t>(static_cast<int64_t>(exponent)) << 52;
  double m = 0.0;
  std::memcpy(&m, &x_bits, sizeof(m));
  const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
  double series = 1.0 / 23;
  series = std::fma(series, s2, 1.0 / 21);
  series = std::fma(series, s2, 1.0 / 19);
  series = std::fma(series, s2, 1.0 / 17);
  series = std::fma(series, s2, 1.0 / 15);
  series = std::fma(series, s2, 1.0 / 13);
  series = std::fma(series, s2, 1.0 / 11);
  series = std::fma(series, s2, 1.0 / 9);
  series = std::fma(series, s2, 1.0 / 7);
  series = std::fma(series, s2, 1.0 / 5);
  series = std::fma(series, s2, 1.0 / 3);
  series = std::fma(series, s2, 1.0);
  return std::fma(static_cast<double>(exponent), 0x1.62E42FEFA39EFp-1, (s + s) * series);
}

// The quotient of two polynomials of degree 7, coefficients from the constant up.
NMOE_HOST_DEVICE inline double ratio(const double (&a)[8], const double (&b)[8], double x) {
  double numerator = a[7], denominator = b[7];
  for (int i = 6; i >= 0; --i) {
    numerator = std::fma(numerator, x, a[i]);
    denominator = std::fma(denominator, x, b[i]);
  }
  return numerator / denominator;
}

// The standard normal's quantile of p in (0, 1), to a relative 1e-15 or so: Wichura, "Algorithm AS 241: the percentage
// points of the normal distribution" (Applied Statistics 37, 1988), PPND16.
NMOE_HOST_DEVICE inline double normal_quantile(double p) {
  constexpr double kCentreA[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                                  1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                  3.3430575583588128105e+4, 2.5090809287301226727e+3};
  constexpr double kCentreB[8] = {1.0,
                                  4.2313330701600911252e+1,
                                  6.8718700749205790830e+2,
                                  5.3941960214247511077e+3,
                                  2.1213794301586595867e+4,
                                  3.9307895800092710610e+4,
                                  2.8729085735721942674e+4,
                                  5.2264952788528545610e+3};
  constexpr double kTailA[8] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kTailB[8] = {1.0,
                                2.05319162663775882187e0,
                                1.67638483018380384940e0,
                                6.89767334985100004550e-1,
                                1.48103976427480074590e-1,
                                1.51986665636164571966e-2,
                                5.47593808499534494600e-4,
                                1.05075007164441684324e-9};
  constexpr double kFarA[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                               2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                               2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double kFarB[8] = {1.0,
                               5.99832206555887937690e-1,
                               1.36929880922735805310e-1,
                               1.48753612908506148525e-2,
                               7.86869131145613259100e-4,
                               1.84631831751005468180e-5,
                               1.42151175831644588870e-7,
                               2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) return q * ratio(kCentreA, kCentreB, std::fma(-q, q, 0.180625));
  const double r = std::sqrt(-log_below_half(q < 0.0 ? p : 1.0 - p));
  const double z = r <= 5.0 ? ratio(kTailA, kTailB, r - 1.6) : ratio(kFarA, kFarB, r - 5.0);
  return q < 0.0 ? -z : z;
}

// A standard normal number conditioned on |z| <= limit, from uniform u in (0, 1). mass_below: that of the normal below
// -limit.
NMOE_HOST_DEVICE inline double truncated_normal(double u, double mass_below) {
  return normal_quantile(std::fma(u, std::fma(-2.0, mass_below, 1.0), mass_below));
}

}  // namespace nmoe::random
