// Between element types, element by element.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace nmoe {

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Whether widen() takes it: F32, BF16, F16.
constexpr bool is_weight_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// `count` elements of a weight dtype at `source` as floats; exact.
void widen(DType dtype, const void* source, float* destination, size_t count);
// The other way; rounds to nearest, ties to even.
void narrow(const float* source, DType dtype, void* destination, size_t count);
// From any dtype to the same, or from one weight dtype to another.
void convert(DType from, const void* source, DType to, void* destination, size_t count);

}  // namespace nmoe
