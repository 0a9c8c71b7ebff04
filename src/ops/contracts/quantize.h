// Operands of products in low precision: blocks of values with a scale each. Formats, formulas and their sources:
// tensor/low_precision.h. Letters and conventions: ops/ops.h.
//
// A block has n values: 128 in FP8, 32 in MXFP8, 16 in NVFP4. Blocks at the edge of a matrix are shorter.
//
//   format   along rows (1 x n)             tiles (n x n)        scales   values
//   kFp8     activations, their gradients   weights              E8M0     E4M3
//   kMxFp8   all                            -                    E8M0     E4M3
//   kNvFp4   activations, their gradients   weights              E4M3     E2M1, two per byte, low half first
#pragma once

#include <cstdint>

#include "base/kinds.h"
#include "tensor/tensor.h"

namespace nmoe {

constexpr int64_t block_size(OperandFormat format) {
  switch (format) {
    case OperandFormat::kFp8:
      return 128;
    case OperandFormat::kMxFp8:
      return 32;
    case OperandFormat::kNvFp4:
      return 16;
    case OperandFormat::kAct:
      break;
  }
  return 1;
}

enum class BlockShape { kRows, kTiles };

// Stochastic rounding, for E2M1 only: element i of block b (in row-major order) of a tensor gets random byte i of
// (*key, stream, first_block + b). In a product of experts, the rows of each expert are a tensor of their own.
struct RandomRounding {
  Tensor key;                // [1] i64, different for each step; undefined: to nearest, ties to even
  uint64_t stream = 0;       // different for each tensor of a step
  uint64_t first_block = 0;  // of the tensor; in products of experts, first_block_of determines it
  Tensor experts = {};       // for these: [E] i32, the number of the e-th expert among all; undefined: e
};
// The first block of the rows of expert number e.
constexpr uint64_t first_block_of(int64_t e) { return static_cast<uint64_t>(e) << 40; }

// The largest magnitude of each of G matrices; not finite where an element is not.
struct AbsMax {
  Tensor x;              // [G, N, C] act
  Tensor num_rows = {};  // [1] i32: how many rows the only matrix has; undefined: N
  Tensor amax;           // = [G] stat
};

// The rows of a matrix [N, C] rounded to FP8: values and scales as written by Quantize.
struct RowCodes {
  Tensor values;  // [N, C] u8
  Tensor scales;  // [N, ceil(C / 128)] u8

  bool defined() const { return values.defined(); }
};
// Bytes of a row of C such values with its scales.
constexpr int64_t row_code_bytes(int64_t C) {
  constexpr int64_t n = block_size(OperandFormat::kFp8);
  return C + (C + n - 1) / n;
}
// The columns of a matrix [R, C] in FP8, for sums over rows: blocks of 128 rows, each of C columns of 128 codes, within
// one of G groups of rows: group g, with rows [begin, end), has ceil((end - begin) / 128) blocks from block begin / 128
// + g on. Codes for rows beyond a group's end are 0; blocks between groups are not written.
struct ColumnCodes {
  Tensor values;  // [R / 128 + G, C, 128] u8
  Tensor scales;  // [R / 128 + G, C] u8

  bool defined() const { return values.defined(); }
};
// Weights [E, out, in] rounded to FP8 in tiles, and the same transposed, for products that sum over `out`: tensor cores
// need 8-bit operands contiguous along the dimension of the sum. A tile and its transpose have the same scale.
struct WeightCodes {
  Tensor values;             // [E, out, in] u8
  Tensor scales;             // [E, ceil(out / 128), ceil(in / 128)] u8
  Tensor transposed_values;  // [E, in, out] u8
  Tensor transposed_scales;  // [E, ceil(in / 128), ceil(out / 128)] u8

  bool defined() const { return values.defined(); }
};

// Rounds G matrices independently. Rows from num_rows on are neither read nor written, nor are their scales.
struct Quantize {
  OperandFormat format = OperandFormat::kFp8;
  BlockShape blocks = BlockShape::kRows;
  Tensor x;              // [G, N, C] act
  Tensor num_rows = {};  // as in AbsMax; only with kRows
  Tensor amax = {};      // [G] stat, largest magnitudes of x; only with NVFP4
  RandomRounding random = {};
  Tensor values;                  // = [G, N, C] u8; NVFP4: [G, N, ceil(C / 2)], the last half byte of an odd row is 0
  Tensor scales;                  // = [G, N, ceil(C / n)] u8; tiles: [G, ceil(N / n), ceil(C / n)]
  Tensor transposed_values = {};  // = [G, C, N] u8, FP8 tiles as in WeightCodes; undefined: not wanted
  Tensor transposed_scales = {};  // = [G, ceil(C / n), ceil(N / n)] u8, if those are wanted
};

// That codes = of the rows x [N, C] act of one matrix, in FP8.
inline Quantize quantize_rows(Tensor x, const RowCodes& codes, Tensor num_rows = {}) {
  const auto alone = [](const Tensor& matrix) { return matrix.reshape({1, matrix.dim(0), matrix.dim(1)}); };
  return {.format = OperandFormat::kFp8,
          .x = alone(x),
          .num_rows = num_rows,
          .values = alone(codes.values),
          .scales = alone(codes.scales)};
}

// The values that codes of rows stand for. Rounding them again changes no value (the scale may become half of what it
// was, with different codes): the largest is at most 448 times a scale that represents all others exactly.
struct WidenRows {
  RowCodes codes;        // [N, C]
  Tensor x;              // = [N, C] act
  Tensor num_rows = {};  // [1] i32: rows from this on are neither read nor written; undefined: N
};

// Measures how much of an operand is lost by rounding, for judging whether a layer bears its format.
//
// The largest magnitude in each row of a block (the first one of several) determines the scale and is left out. Of the
// other values, the ratio of the sum of squared errors to the sum of squares is taken, at most 1. This shows an outlier
// that leaves nothing of its neighbours, although it is exact itself and has nearly all of the energy. The mean of the
// ratio over rows of blocks, in dB, is what is called the signal-to-noise ratio here
// (train/precision/precision_watch.h).
//
// Rounding is to nearest. All counts are whole numbers. Ratios are rounded to multiples of kLostUnit and summed in that
// unit, so their sums are whole numbers too: below 2^53 they are exact, and the same in any order.
constexpr double kLostUnit = 0x1p-24;
struct RoundingCounts {
  double values = 0;      // values that are not zero
  double underflows = 0;  // those of them that become zero
  double saturated = 0;   // those beyond the format's largest element before rounding
  double rows = 0;        // rows of blocks with more than one value that is not zero
  double lost = 0;        // sum of their ratios, in units of kLostUnit
};
struct MeasureRounding {
  OperandFormat format = OperandFormat::kFp8;
  BlockShape blocks = BlockShape::kRows;
  Tensor x;  // [G, N, C] act
  // [E + 1] i32, with kRows and G = 1: expert e has rows [offsets[e], offsets[e + 1]), and in NVFP4 its own tensor
  // scale; rows from offsets[E] on are not read. Undefined: all rows, one scale per matrix.
  Tensor offsets = {};
  Tensor index = {};  // [R] i32, with offsets: row r of the experts is row index[r] of x; undefined: row r
  Tensor counts;      // [5] f64 +=, RoundingCounts
};

}  // namespace nmoe
