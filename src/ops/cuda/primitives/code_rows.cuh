// FP8 codes of rows: made by a kernel of the rows that it writes, before these leave, and read for their values.
#pragma once

#include "base/error.h"
#include "ops/contracts/quantize.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/fp8.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "tensor/low_precision.h"

namespace nmoe::cuda {

// Of rows whose width is a multiple of a block's. Null: not wanted.
struct CodeRows {
  static constexpr int kBlock = static_cast<int>(block_size(OperandFormat::kFp8));
  uint8_t* values;
  uint8_t* scales;
  int64_t width;

  // Of the row's values [i, i + 8), rounded as they are stored. i is a multiple of 8; the sixteen threads of a block,
  // half a warp, come together.
  template <class T>
  __device__ void store8(int64_t row, int64_t i, const float (&v)[8]) const {
    const unsigned lane = threadIdx.x % kWarp, half = 0xFFFFU << (lane & 16U);
    float stored[8];
    unsigned largest = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      stored[j] = to_float(from_float<T>(v[j]));
      largest = max(largest, magnitude_bits(stored[j]));
    }
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) largest = max(largest, __shfl_xor_sync(half, largest, offset));
    const uint8_t scale = e8m0_scale(amax_of_bits(largest));
    const float factor = e8m0_to_inverse(scale);
#pragma unroll
    for (float& value : stored) value *= factor;
    *reinterpret_cast<uint2*>(values + row * width + i) = make_uint2(
        e4m3_four(stored[0], stored[1], stored[2], stored[3]), e4m3_four(stored[4], stored[5], stored[6], stored[7]));
    if (i % kBlock == 0) scales[row * (width / kBlock) + i / kBlock] = scale;
  }
};

// The values that codes of rows of any width stand for.
struct CodedValues {
  static constexpr int kBlock = static_cast<int>(block_size(OperandFormat::kFp8));
  const uint8_t* values;
  const uint8_t* scales;
  int64_t width, across;  // across: blocks of a row

  __device__ float at(int64_t row, int64_t i) const {
    return e4m3_to_float(values[row * width + i]) * e8m0_to_float(scales[row * across + i / kBlock]);
  }
  // [i, i + 8) of a row; width and i are multiples of 8, and values begin at one.
  __device__ void load8(int64_t row, int64_t i, float (&v)[8]) const {
    const uint2 codes = *reinterpret_cast<const uint2*>(values + row * width + i);
    const float scale = e8m0_to_float(scales[row * across + i / kBlock]);
    e4m3_values(codes.x, scale, v[0], v[1], v[2], v[3]);
    e4m3_values(codes.y, scale, v[4], v[5], v[6], v[7]);
  }
};
inline CodedValues coded_values(const RowCodes& codes) {
  return {.values = codes.values.data<uint8_t>(),
          .scales = codes.scales.data<uint8_t>(),
          .width = codes.values.dim(1),
          .across = codes.scales.dim(1)};
}
// Whether these and rows like them are read and written by eights.
inline bool in_eights(const RowCodes& codes, const Tensor& rows) {
  return can_vectorise(codes.values.dim(1), rows) && std::bit_cast<uintptr_t>(codes.values.raw()) % 8 == 0;
}

// Whether kernels can make the codes of x, whose rows are in `parts` that no block leaves.
inline bool makes_codes(const Tensor& x, int64_t parts, const RowCodes& codes) {
  return codes.defined() && x.dtype() == DType::kBF16 && x.dim(1) / parts % CodeRows::kBlock == 0;
}
inline CodeRows code_rows(const Tensor& x, const RowCodes& codes) {
  NMOE_CHECK(
      codes.values.shape() == x.shape() && codes.scales.shape() == Shape({x.dim(0), x.dim(1) / CodeRows::kBlock}),
      "codes {} and scales {} of {}", codes.values.shape(), codes.scales.shape(), x.shape());
  return {.values = codes.values.data<uint8_t>(), .scales = codes.scales.data<uint8_t>(), .width = x.dim(1)};
}

}  // namespace nmoe::cuda
