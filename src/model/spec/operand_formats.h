// The formats of the operands of a model's products: those of run.precision, as restricted by [precision].
//
//   format  forward and the gradient of inputs  the gradient of weights
//   fp8     E4M3                                not rounded; experts' E4M3 with precision.fp8_weight_gradients
//   mxfp8   MXFP8                               MXFP8
//   nvfp4   NVFP4                               NVFP4, transformed (precision.nvfp4_transform)
//
// Gradients of outputs are rounded to NVFP4 stochastically (precision.nvfp4_random_rounding).
#pragma once

#include "config/config.h"
#include "model/weight.h"

namespace nmoe {

// Sets the formats of all weights, before the first pass. rounding_key: [1] i64, a different number in every step.
void set_operand_formats(WeightSet& weights, const Config& config, Tensor rounding_key);
// After set_operand_formats(): allocates the codes of weights, if the device's products use codes. Error (usage) if the
// device lacks products in these formats, or of these sizes.
void allocate_weight_codes(WeightSet& weights, Ops& ops, Arena& codes);
// The same for one weight to which no other is joined.
void allocate_weight_codes(Weight& weight, Ops& ops, Arena& codes);

}  // namespace nmoe
