// Measures how much of a product is lost by rounding its operands, without computing the product: like the measurement
// of operands (contracts/quantize.h), for judging whether a layer bears a format. Letters and conventions: ops/ops.h.
//
// A sample of outputs is measured: 8 runs of 8 neighbouring rows and 8 runs of 8 neighbouring columns, spread evenly
// over all rows and columns, cross in 64 tiles. All of these are used, but with experts only 8 for each expert, one in
// every run of rows and of columns, so that an expert's result does not depend on which other experts are on the
// device. For each tile, the outputs of operands rounded to nearest are compared with those of the operands as they
// are, both summed in fp64: what is lost is the sum of squared errors over the sum of squares, at most 1. Operands are
// not transformed: the only products with a transform, NVFP4's weight gradients, are not measured.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/kinds.h"
#include "ops/contracts/linear.h"
#include "tensor/tensor.h"

namespace nmoe {

constexpr int64_t kSampledRuns = 8;  // of rows, and of columns
constexpr int64_t kSampledRun = 8;

// The first row of a run among `rows`, and the first column of one among `cols`; a run ends at the last row or column.
// Columns are aligned, so that a run lies in one block.
NMOE_HOST_DEVICE inline int64_t sampled_row(int64_t run, int64_t rows) { return run * rows / kSampledRuns; }
NMOE_HOST_DEVICE inline int64_t sampled_col(int64_t run, int64_t cols) {
  return run * cols / kSampledRuns / kSampledRun * kSampledRun;
}
// The number of runs of columns that each run of rows is combined with: run r with r, r + 1, ..., cyclically.
constexpr int64_t sampled_runs_of_columns(bool of_experts) { return of_experts ? 1 : kSampledRuns; }

// x w^T, a forward product, or with over_out x w, an input gradient. With offsets, the rows [offsets[e], offsets[e +
// 1]) are multiplied by expert e's matrix, and have a tensor scale of their own in NVFP4.
struct MeasureProduct {
  OperandFormat format = OperandFormat::kFp8;
  OperandRows x;  // [R, in]; over_out: [R, out]
  Tensor w;       // [E, out, in] act
  bool over_out = false;
  Tensor offsets = {};  // [E + 1] i32; undefined: E is 1, and all R rows count
  Tensor counts;        // [5] f64 +=, RoundingCounts of outputs: values, rows (tiles with any) and lost
};

}  // namespace nmoe
