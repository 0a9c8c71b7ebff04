// Measures what a weight's products lose by rounding, in steps that check precision
// (train/precision/precision_checks.h): the next forward product and the next backward one add the errors that rounding
// to the weight's format makes in their operands (contracts/quantize.h) and outputs (contracts/measure_product.h),
// whatever they round to themselves.
//
// Threads: driven by the one that drives the device (ops/device.h).
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace nmoe {

// The tensors of a weight's products whose rounding error is measured: first the operands, then the outputs (of the
// forward product, and the gradient of its input).
enum class Measured { kInputs, kWeights, kGradients, kOutputs, kInputGradients };
inline constexpr int64_t kNumMeasured = 5;
constexpr bool is_output(Measured what) { return what >= Measured::kOutputs; }

class RoundingProbe {
 public:
  Tensor counts;  // [Measured, 5] f64 +=, RoundingCounts; undefined: nothing is measured

  void measure_next() { forward_ = gradient_ = counts.defined(); }
  // Whether the next product measures. It then needs the rows themselves, not only their codes.
  bool measures_forward() const { return forward_; }
  bool measures_gradient() const { return gradient_; }
  // Called by such a product before its own operation: `x` and `dy` as passed to it, for experts in groups by
  // `offsets`; `value` with the weights that are joined to it.
  void measure_forward(Ops& ops, OperandFormat format, const OperandRows& x, Tensor value, Tensor offsets = {});
  void measure_gradient(Ops& ops, OperandFormat format, const OperandRows& dy, Tensor value, Tensor offsets = {});

 private:
  void measure_rows(Ops& ops, OperandFormat format, Measured operand, const OperandRows& rows, Tensor offsets);
  Tensor counts_of(Measured what) const { return counts[static_cast<int64_t>(what)]; }

  bool forward_ = false, gradient_ = false;
};

}  // namespace nmoe
