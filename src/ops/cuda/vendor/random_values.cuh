// Values of about normal distribution, for products that are timed or checked.
#pragma once

#include <cstdint>

namespace nmoe::cuda {

// A function of `index` and `seed`.
__device__ inline float random_value(uint64_t index, uint64_t seed) {
  uint64_t x = (index + seed * 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 31;
  x *= 0x94D049BB133111EBULL;
  x ^= x >> 29;
  float sum = 0.0F;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((x >> (16 * i)) & 0xFFFFU) * 0x1p-16F;
  return (sum - 2.0F) * 1.7320508F;  // the variance of a sum of four is a third
}

}  // namespace nmoe::cuda
