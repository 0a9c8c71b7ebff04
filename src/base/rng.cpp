#include "base/rng.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace nmoe {
namespace {

constexpr uint32_t kMul0 = 0xD2511F53U;
constexpr uint32_t kMul1 = 0xCD9E8D57U;
constexpr uint32_t kWeyl0 = 0x9E3779B9U;
constexpr uint32_t kWeyl1 = 0xBB67AE85U;

double to_unit(uint64_t bits) {  // 52 bits, centred in their cell: strictly inside (0, 1)
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

// Inverse normal CDF: Acklam's rational approximation sharpened by one Halley step (to about 1e-15).
double normal_quantile(double p) {
  constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                          1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
                          -1.328068155288572e+01};
  constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                          -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
  const bool upper = p > 0.5;
  const double tail = upper ? 1.0 - p : p;
  double z = 0;
  if (tail < 0.02425) {
    const double q = std::sqrt(-2.0 * std::log(tail));
    z = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
        ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1.0);
  } else {
    const double q = tail - 0.5;
    const double r = q * q;
    z = (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
        (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1.0);
  }
  const double error = normal_cdf(z) - tail;
  const double step = error * std::sqrt(2.0 * std::numbers::pi) * std::exp(0.5 * z * z);
  z -= step / (1.0 + 0.5 * z * step);
  return upper ? -z : z;
}

uint64_t mix64(uint64_t x) {  // the finaliser of SplitMix64
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMul0) * counter[0];
    const uint64_t p1 = static_cast<uint64_t>(kMul1) * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

Philox::Philox(uint64_t seed, std::string_view stream_name) : Philox(seed, fnv1a64(stream_name)) {}

uint64_t Philox::bits(uint64_t index) const {
  const auto words = philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                                 static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                                {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  return (static_cast<uint64_t>(words[0]) << 32) | words[1];
}

double Philox::uniform(uint64_t index) const { return to_unit(bits(index)); }

double Philox::normal(uint64_t index) const { return normal_quantile(uniform(index)); }

double Philox::truncated_normal(uint64_t index, double limit) const {
  const double low = normal_cdf(-limit);
  return normal_quantile(low + uniform(index) * (1.0 - 2.0 * low));
}

KeyedPermutation::KeyedPermutation(uint64_t size, uint64_t key) : size_(size), key_(key) {
  NMOE_CHECK(size > 0, "a permutation needs at least one element");
  const unsigned bits = static_cast<unsigned>(std::bit_width(size - 1));
  half_bits_ = std::max(1U, (bits + 1) / 2);
}

uint64_t KeyedPermutation::operator()(uint64_t position) const {
  NMOE_CHECK(position < size_, "position {} of a permutation of {}", position, size_);
  const uint64_t mask = (1ULL << half_bits_) - 1;
  do {
    uint64_t left = position >> half_bits_;
    uint64_t right = position & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed = mix64(right ^ mix64(key_ + round * 0x9E3779B97F4A7C15ULL));
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    position = (left << half_bits_) | right;
  } while (position >= size_);
  return position;
}

uint64_t fnv1a64(std::string_view bytes) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char byte : bytes) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= 0x100000001B3ULL;
  }
  return hash;
}

}  // namespace nmoe
