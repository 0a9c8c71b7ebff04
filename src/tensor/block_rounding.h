// What becomes of the values of a block in a low precision, for host and device. Formats, scales and their sources:
// tensor/low_precision.h. Rounding is to nearest.
#pragma once

#include "base/kinds.h"
#include "tensor/low_precision.h"

namespace nmoe {

struct BlockRounding {
  bool is_e2m1;
  float factor;  // from values to elements
  float unit;    // what an element of 1 stands for

  // block_amax, tensor_amax: the largest magnitudes of block and matrix, as amax_of_bits() has them. The latter is
  // NVFP4's alone.
  static NMOE_HOST_DEVICE BlockRounding of(OperandFormat format, float block_amax, float tensor_amax) {
    if (format != OperandFormat::kNvFp4) {
      const uint8_t scale = e8m0_scale(block_amax);
      return {false, e8m0_to_inverse(scale), e8m0_to_float(scale)};
    }
    const float tensor_factor = nvfp4_tensor_factor(tensor_amax);
    const uint8_t scale = nvfp4_scale(block_amax, tensor_factor);
    return {true, nvfp4_block_factor(scale, tensor_factor), e4m3_to_float(scale) * (1.0F / tensor_factor)};
  }

  NMOE_HOST_DEVICE float element(float x) const {
    return is_e2m1 ? round_to_e2m1(x * factor) : round_to_e4m3(x * factor);
  }
  // What x becomes.
  NMOE_HOST_DEVICE float rounded(float x) const { return element(x) * unit; }
  // Of a value that is none: its element is, or the block's scale.
  NMOE_HOST_DEVICE bool vanishes(float x) const { return element(x) == 0.0F || unit == 0.0F; }
  NMOE_HOST_DEVICE bool saturates(float x) const {
    return magnitude_bits(x * factor) > low_precision::bits_of(is_e2m1 ? kE2M1Max : kE4M3Max);
  }
  // element(x) is an exact product in double precision.
  NMOE_HOST_DEVICE double error(float x) const { return static_cast<double>(element(x)) * unit - x; }
};

}  // namespace nmoe
