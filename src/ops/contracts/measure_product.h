// How much of a product rounding its operands loses, without the product: what a run looks at beside its operands
// (contracts/quantize.h) to see that a layer bears a format. Letters and conventions: ops/ops.h.
//
// A sample of outputs: tiles of 8 neighbouring rows by 8 neighbouring columns, of 8 runs of rows and 8 of columns that
// are spread evenly over those that there are: all 64, of experts 8 each, one of every run of rows and of columns. So
// what is found of an expert does not depend on which others are here. For each tile what is lost is the sum of squared
// errors over that of the squares, 1 at most, of the outputs of operands rounded to nearest against those of operands
// as they are, both summed up in fp64. Not transformed, as NVFP4's gradients of weights are: those products are not
// measured.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/host_device.h"
#include "base/kinds.h"
#include "ops/contracts/linear.h"
#include "tensor/tensor.h"

namespace nmoe {

constexpr int64_t kSampledRuns = 8;  // of rows, and of columns
constexpr int64_t kSampledRun = 8;

// The first row of a run, of `rows`, and the first column, of `cols`; a run ends where these do. Columns are aligned,
// so that a run is in one block.
NMOE_HOST_DEVICE inline int64_t sampled_row(int64_t run, int64_t rows) { return run * rows / kSampledRuns; }
NMOE_HOST_DEVICE inline int64_t sampled_col(int64_t run, int64_t cols) {
  return run * cols / kSampledRuns / kSampledRun * kSampledRun;
}
// With how many runs of columns each run of rows is looked at: run r with r, r + 1, ... around.
constexpr int64_t sampled_runs_of_columns(bool of_experts) { return of_experts ? 1 : kSampledRuns; }

// x w^T, or x w with over_out, as a forward product or one of an input's gradient. With offsets the rows [offsets[e],
// offsets[e + 1]) go through expert e's matrix, and have a tensor scale of their own in NVFP4.
struct MeasureProduct {
  OperandFormat format = OperandFormat::kFp8;
  OperandRows x;  // [R, in]; over_out: [R, out]
  Tensor w;       // [E, out, in] act
  bool over_out = false;
  Tensor offsets = {};  // [E + 1] i32; undefined: E is 1, and there are all R rows
  Tensor counts;        // [5] f64 +=, RoundingCounts of outputs: values, rows (tiles with any) and lost
};

// What every device checks.
inline void check_measure_product(const MeasureProduct& args) {
  const Shape& w = args.w.shape();
  NMOE_CHECK(w.rank() == 3 && args.x.source.shape().rank() == 2 && args.x.width() == w[args.over_out ? 1 : 2] &&
                 args.counts.shape() == Shape({5}) && args.counts.dtype() == DType::kF64,
             "counts {} of rows {} through {}", args.counts.shape(), args.x.source.shape(), w);
  NMOE_CHECK(args.offsets.defined() ? args.offsets.shape() == Shape({w[0] + 1}) : w[0] == 1, "{} matrices", w[0]);
  NMOE_CHECK(args.format != OperandFormat::kAct, "there are no such blocks");
}

}  // namespace nmoe
