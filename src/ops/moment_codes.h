// AdamW's moments in 8 bits, for host and device: codes of a tensor's elements in blocks of 128, counted from its start
// (from that of each of stacked matrices), and a scale in E8M0 (tensor/low_precision.h) for each block and moment.
//
//   first moment   E4M3 times its scale, the power of two rounded up from amax / 448, as FP8's blocks have it
//   second moment  UE5M3 times its scale, rounded up alike from amax / 122880:
//                  no sign, 5 exponent bits with bias 15, 3 mantissa bits; 0 and 2^-17 to 122880, nothing else
//
// A block's second moments range over the squares of its gradients, for which 4 exponent bits have too few octaves.
// (Blocks with a code that spans decades: Dettmers et al., arXiv 2110.02861; moments in groups of 128 in E4M3: COAT,
// arXiv 2410.19313, section 4. Powers of two as scales, a format of its own for the second moment, and what follows are
// ours.)
//
// Both are rounded at random, by the bits of moment_rounding.h, so that the mean over these is the value itself: the
// largest code is not below the block's largest magnitude, and no code saturates. Only a second moment that is not zero
// does not become zero but the least code, as a step divides by its root. With codes a share s apart, 1/16 to 1/8, a
// second moment is off by the root of s / 2 in the end (adamw_math.h): 18 to 25 % of itself, its root by half of that.
//
// A moment that is not finite makes its block's scale NaN, and so all of the block's, and its weights in the next step.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "tensor/low_precision.h"

namespace nmoe::moments {

constexpr int64_t kBlock = 128;
NMOE_HOST_DEVICE constexpr int64_t num_blocks(int64_t elements) { return (elements + kBlock - 1) / kBlock; }
constexpr float kUE5M3Max = 122880.0F;

NMOE_HOST_DEVICE inline float ue5m3_to_float(uint8_t code) {
  const uint32_t exponent = code >> 3, mantissa = code & 7U;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-17F;
  return low_precision::float_of((exponent + 112) << 23 | mantissa << 20);
}

// The code of a magnitude in a format of 3 mantissa bits, an exponent's bias, and `most` as its largest code, rounded
// at random by 16 bits. Products by powers of two are exact: whether a compiler fuses them into the sum is all the
// same.
NMOE_HOST_DEVICE inline uint32_t to_code(float magnitude, uint32_t bias, uint32_t most, uint32_t random) {
  const uint32_t bits = low_precision::bits_of(magnitude);
  uint32_t code = 0;
  if (bits < (128 - bias) << 23) {  // subnormal: multiples of 2^(-2 - bias)
    const float steps = magnitude * low_precision::float_of((129 + bias) << 23);
    code = static_cast<uint32_t>(steps + static_cast<float>(random) * 0x1p-16F);
  } else {
    code = ((bits + (random << 4)) >> 20) - ((127 - bias) << 3);
  }
  return code < most ? code : most;
}

NMOE_HOST_DEVICE inline uint8_t first_scale(float amax) { return e8m0_scale(amax); }
NMOE_HOST_DEVICE inline uint8_t second_scale(float amax) { return float_to_e8m0(amax * (1.0F / kUE5M3Max)); }

// The code of a moment times the inverse of its block's scale.
NMOE_HOST_DEVICE inline uint8_t first_code(float x, uint32_t random) {
  using namespace low_precision;
  const uint32_t code = to_code(float_of(bits_of(x) & kMagnitude), 7, 0x7E, random);
  return static_cast<uint8_t>((bits_of(x) >> 24 & 0x80U) | code);
}
NMOE_HOST_DEVICE inline uint8_t second_code(float x, uint32_t random) {
  const uint32_t code = to_code(x, 15, 0xFF, random);
  return static_cast<uint8_t>(code == 0 && x > 0.0F ? 1U : code);
}

}  // namespace nmoe::moments
