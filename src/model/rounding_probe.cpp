#include "model/rounding_probe.h"

#include <utility>

namespace nmoe {
namespace {

// [E, out, in] of stacked matrices or of one.
Tensor as_matrices(const Tensor& w) { return w.shape().rank() == 3 ? w : w.reshape({1, w.dim(0), w.dim(1)}); }

}  // namespace

void RoundingProbe::measure_rows(Ops& ops, OperandFormat format, Measured operand, const OperandRows& rows,
                                 Tensor offsets) {
  const Tensor& x = rows.source;
  // Every token is picked as often as every other: without scales of experts, shares are those of each once.
  const bool each_once = rows.index.defined() && format != OperandFormat::kNvFp4;
  ops.measure_rounding({.format = format,
                        .x = x.reshape({1, x.dim(0), x.dim(1)}),
                        .offsets = each_once ? Tensor() : offsets,
                        .index = each_once ? Tensor() : rows.index,
                        .counts = counts_of(operand)});
}

void RoundingProbe::measure_forward(Ops& ops, OperandFormat format, const OperandRows& x, Tensor value,
                                    Tensor offsets) {
  if (!std::exchange(forward_, false)) return;
  measure_rows(ops, format, Measured::kInputs, x, offsets);
  const Tensor matrices = as_matrices(value);
  ops.measure_rounding({.format = format,
                        .blocks = format == OperandFormat::kMxFp8 ? BlockShape::kRows : BlockShape::kTiles,
                        .x = matrices,
                        .counts = counts_of(Measured::kWeights)});
  ops.measure_product(
      {.format = format, .x = x, .w = matrices, .offsets = offsets, .counts = counts_of(Measured::kOutputs)});
}

void RoundingProbe::measure_gradient(Ops& ops, OperandFormat format, const OperandRows& dy, Tensor value,
                                     Tensor offsets) {
  if (!std::exchange(gradient_, false)) return;
  measure_rows(ops, format, Measured::kGradients, dy, offsets);
  ops.measure_product({.format = format,
                       .x = dy,
                       .w = as_matrices(value),
                       .over_out = true,
                       .offsets = offsets,
                       .counts = counts_of(Measured::kInputGradients)});
}

}  // namespace nmoe
