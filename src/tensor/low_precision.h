// The numbers of low-precision formats and of their blocks' scales, for host and device: one source, and so the same
// bits. Only what IEEE 754 rounds one way, and no product next to a sum, which a compiler could fuse.
//
//   E4M3  1 sign, 4 exponent bits with bias 7, 3 mantissa bits; up to 448, no infinities, all ones is NaN
//         (arXiv 2209.05433, table 1; "fn" elsewhere)
//   E2M1  1 sign, 2 exponent bits with bias 1, 1 mantissa bit: 0, .5, 1, 1.5, 2, 3, 4, 6; neither infinity nor NaN
//   E8M0  a power of two, 2^(code - 127); 255 is NaN
//         (the two: OCP Microscaling Formats (MX) Specification v1.0, section 5.3)
//
// Blocks. A block's largest magnitude decides its scale; a value is its scale times an element.
//
//   E4M3 elements, E8M0 scales: the power of two is rounded up from amax / 448, so that no element saturates
//         (NVIDIA TransformerEngine, common/util/ptx.cuh: float_to_e8m0; the OCP text rounds down and lets them, which
//         can diverge: arXiv 2506.08027). FP8 uses the same for its longer blocks, as 2^x of DeepGEMM's scales.
//   E2M1 elements, E4M3 scales, and an fp32 scale of the whole tensor (NVFP4): below, after TransformerEngine's
//         pytorch/custom_recipes/reference_nvfp4.py and common/cast/nvfp4/core_nvfp4.cuh.
//
// A value that is not finite makes its block's scale NaN, and so every value of the block (and, in NVFP4, of the
// tensor): it shows itself behind the product, and is not turned into a number.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/host_device.h"
#include "base/random_math.h"

namespace nmoe {

constexpr float kE4M3Max = 448.0F, kE2M1Max = 6.0F;
constexpr float kMostF32 = 0x1.FFFFFEp127F;

namespace low_precision {

constexpr uint32_t kInfinity = 0x7F800000U, kMagnitude = 0x7FFFFFFFU;

NMOE_HOST_DEVICE inline uint32_t bits_of(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
NMOE_HOST_DEVICE inline float float_of(uint32_t bits) {
  float x = 0.0F;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace low_precision

// --- E4M3

NMOE_HOST_DEVICE inline float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80U) << 24, exponent = code >> 3 & 15U, mantissa = code & 7U;
  float magnitude = 0.0F;
  if (exponent == 15 && mantissa == 7) {
    magnitude = low_precision::float_of(0x7FC00000U);
  } else if (exponent > 0) {
    magnitude = low_precision::float_of((exponent + 120) << 23 | mantissa << 20);
  } else {
    magnitude = static_cast<float>(mantissa) * 0x1p-9F;
  }
  return low_precision::float_of(low_precision::bits_of(magnitude) | sign);
}

// To nearest, ties to even; beyond 448, infinities too, 448. NaN becomes 0x7F, whatever its sign.
NMOE_HOST_DEVICE inline uint8_t float_to_e4m3(float x) {
  using namespace low_precision;
  const uint32_t bits = bits_of(x), magnitude = bits & kMagnitude, sign = bits >> 24 & 0x80U;
  if (magnitude > kInfinity) return 0x7F;
  if (magnitude >= bits_of(kE4M3Max)) return static_cast<uint8_t>(sign | 0x7EU);
  if (magnitude < bits_of(0x1p-6F)) {  // subnormal: multiples of 2^-9
    return static_cast<uint8_t>(sign | (bits_of(float_of(magnitude) + 0x1p14F) - bits_of(0x1p14F)));
  }
  const uint32_t rounded = (magnitude + 0x7FFFFU + (magnitude >> 20 & 1U)) >> 20;
  return static_cast<uint8_t>(sign | (rounded - (120U << 3)));
}

// e4m3_to_float(float_to_e4m3(x)), in few instructions without branches.
NMOE_HOST_DEVICE inline float round_to_e4m3(float x) {
  using namespace low_precision;
  const uint32_t bits = bits_of(x), magnitude = bits & kMagnitude;
  const uint32_t least = bits_of(0x1p-6F), most = bits_of(kE4M3Max);
  const uint32_t kept = magnitude > most && magnitude <= kInfinity ? most : magnitude;
  const float anchor = float_of(((kept > least ? kept : least) & kInfinity) + (20U << 23));
  const float rounded = (float_of(kept) + anchor) - anchor;
  return magnitude > kInfinity ? x : float_of(bits_of(rounded) | (bits & ~kMagnitude));
}

// --- E2M1

NMOE_HOST_DEVICE inline float e2m1_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 8U) << 28, exponent = code >> 1 & 3U, mantissa = code & 1U;
  if (exponent == 0) return low_precision::float_of(sign | (mantissa == 0 ? 0U : low_precision::bits_of(0.5F)));
  return low_precision::float_of(sign | (exponent + 126) << 23 | mantissa << 22);
}

// To nearest, ties to even; beyond 6, infinities too, 6. NaN becomes 6.
NMOE_HOST_DEVICE inline uint8_t float_to_e2m1(float x) {
  using namespace low_precision;
  const uint32_t bits = bits_of(x), magnitude = bits & kMagnitude, sign = bits >> 28 & 8U;
  if (magnitude > kInfinity) return 7;
  if (magnitude >= bits_of(kE2M1Max)) return static_cast<uint8_t>(sign | 7U);
  if (magnitude < bits_of(1.0F)) {  // subnormal: multiples of 1/2
    return static_cast<uint8_t>(sign | (bits_of(float_of(magnitude) + 0x1p22F) - bits_of(0x1p22F)));
  }
  const uint32_t rounded = (magnitude + 0x1FFFFFU + (magnitude >> 22 & 1U)) >> 22;
  return static_cast<uint8_t>(sign | (rounded - (126U << 1)));
}

// e2m1_to_float(float_to_e2m1(x)), in few instructions without branches.
NMOE_HOST_DEVICE inline float round_to_e2m1(float x) {
  using namespace low_precision;
  const uint32_t bits = bits_of(x), magnitude = bits & kMagnitude;
  const uint32_t least = bits_of(1.0F), most = bits_of(kE2M1Max);
  const uint32_t kept = magnitude > most ? most : magnitude;
  const float anchor = float_of(((kept > least ? kept : least) & kInfinity) + (22U << 23));
  const float rounded = (float_of(kept) + anchor) - anchor;
  return magnitude > kInfinity ? kE2M1Max : float_of(bits_of(rounded) | (bits & ~kMagnitude));
}

// Up or down at random: up where the first 8 bits of the way between both neighbours, plus `random`, reach the upper.
// Its mean is x, but for what those 8 bits leave out. Limits as above.
NMOE_HOST_DEVICE inline uint8_t float_to_e2m1(float x, uint8_t random) {
  using namespace low_precision;
  const uint32_t bits = bits_of(x), magnitude = bits & kMagnitude, sign = bits >> 28 & 8U;
  if (magnitude > kInfinity) return 7;
  if (magnitude >= bits_of(kE2M1Max)) return static_cast<uint8_t>(sign | 7U);
  if (magnitude < bits_of(1.0F)) {
    const auto way = static_cast<uint32_t>(float_of(magnitude) * 512.0F);  // in halves, and 8 bits of the next
    return static_cast<uint8_t>(sign | ((way + random) >> 8));
  }
  return static_cast<uint8_t>(sign | (((magnitude + (static_cast<uint32_t>(random) << 14)) >> 22) - (126U << 1)));
}

// --- E8M0

// Without branches: main loops of products scale by it.
NMOE_HOST_DEVICE inline float e8m0_to_float(uint8_t code) {
  const uint32_t least = low_precision::bits_of(0x1p-127F), bits = static_cast<uint32_t>(code) << 23;
  const uint32_t finite = bits > least ? bits : least;
  return low_precision::float_of(code == 255 ? 0x7FC00000U : finite);
}
// 1 / e8m0_to_float(code), which is exact.
NMOE_HOST_DEVICE inline float e8m0_to_inverse(uint8_t code) {
  if (code == 255) return low_precision::float_of(0x7FC00000U);
  return code == 254 ? 0x1p-127F : low_precision::float_of((254U - code) << 23);
}

// The least power of two that is not below x >= 0, of those there are. Not finite: NaN.
NMOE_HOST_DEVICE inline uint8_t float_to_e8m0(float x) {
  const uint32_t bits = low_precision::bits_of(x) & low_precision::kMagnitude;
  if (bits >= low_precision::kInfinity) return 255;
  const uint32_t exponent = bits >> 23, mantissa = bits & 0x7FFFFFU;
  if (exponent == 0) return mantissa > 0x400000U ? 1 : 0;
  return static_cast<uint8_t>(exponent + (mantissa > 0 && exponent < 254 ? 1U : 0U));
}

// --- the largest magnitude

// Magnitudes as bits compare like their values, NaN above all: whoever takes their maximum keeps what is not finite.
NMOE_HOST_DEVICE inline uint32_t magnitude_bits(float x) {
  return low_precision::bits_of(x) & low_precision::kMagnitude;
}
// A maximum of such bits as a number: NaN where something is not finite.
NMOE_HOST_DEVICE inline float amax_of_bits(uint32_t bits) {
  return low_precision::float_of(bits >= low_precision::kInfinity ? 0x7FC00000U : bits);
}

// --- blocks of E4M3 with a scale in E8M0

NMOE_HOST_DEVICE inline uint8_t e8m0_scale(float amax) { return float_to_e8m0(amax * (1.0F / kE4M3Max)); }

// --- blocks of E2M1 with a scale in E4M3, below a scale of the tensor

// The factor from values to what blocks see, S_enc, from the tensor's amax.
NMOE_HOST_DEVICE inline float nvfp4_tensor_factor(float amax) {
  if (amax == 0.0F) return 1.0F;
  const float factor = kE4M3Max * kE2M1Max / amax;
  return factor > kMostF32 ? kMostF32 : factor;  // NaN stays
}
NMOE_HOST_DEVICE inline uint8_t nvfp4_scale(float block_amax, float tensor_factor) {
  return float_to_e4m3(block_amax * (tensor_factor * (1.0F / kE2M1Max)));
}
// The factor from values to elements.
NMOE_HOST_DEVICE inline float nvfp4_block_factor(uint8_t scale, float tensor_factor) {
  const float factor = 1.0F / (e4m3_to_float(scale) * (1.0F / tensor_factor));
  return factor > kMostF32 ? kMostF32 : factor;
}
// What a product of two such tensors, without their tensors' scales, is to be multiplied by.
NMOE_HOST_DEVICE inline float nvfp4_product_scale(float amax_a, float amax_b) {
  return amax_a * amax_b * (1.0F / (kE2M1Max * kE2M1Max * kE4M3Max * kE4M3Max));
}

// The random bytes of the elements of block number `block`, 16 at most.
NMOE_HOST_DEVICE inline random::Words rounding_bytes(uint64_t key, uint64_t stream, uint64_t block) {
  return random::philox4x32({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                              static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}},
                            static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}
NMOE_HOST_DEVICE inline uint8_t byte_of(const random::Words& words, int element) {
  return static_cast<uint8_t>(words.word[element / 4] >> (8 * (element % 4)));
}

// --- the transform of what is summed over in NVFP4's gradients of weights

// x = x diag(s) H / 4, with Sylvester's Hadamard matrix of 16 points and TransformerEngine's signs s; then to BF16. By
// butterflies, neighbours first.
NMOE_HOST_DEVICE inline void random_hadamard(float (&x)[16]) {
  constexpr uint32_t kNegative = 0xD7E8U;  // bit i: s[i] = -1
  for (int i = 0; i < 16; ++i) x[i] = (kNegative >> i & 1U) != 0 ? -x[i] : x[i];
  for (int half = 1; half < 16; half *= 2) {
    for (int i = 0; i < 16; ++i) {
      if ((i & half) != 0) continue;
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
  for (float& value : x) {
    const uint32_t bits = low_precision::bits_of(value * 0.25F);
    const uint32_t rounded = (bits & low_precision::kMagnitude) > low_precision::kInfinity
                                 ? bits | 0x400000U
                                 : bits + 0x7FFFU + (bits >> 16 & 1U);
    value = low_precision::float_of(rounded & 0xFFFF0000U);
  }
}

}  // namespace nmoe
