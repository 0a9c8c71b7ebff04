// In which formats the operands of a model's products are: run.precision, as [precision] limits it.
//
//   format  forward and the gradient of inputs  the gradient of weights
//   fp8     E4M3                                as they are, or E4M3 (precision.fp8_weight_gradients)
//   mxfp8   MXFP8                               MXFP8
//   nvfp4   NVFP4                               NVFP4, transformed (precision.nvfp4_transform)
//
// Gradients of outputs are rounded to NVFP4 at random (precision.nvfp4_random_rounding).
#pragma once

#include "config/config.h"
#include "model/weight.h"

namespace nmoe {

// Sets the formats of all weights, before the first pass. rounding_key: [1] i64, another number in every step.
void set_operand_formats(WeightSet& weights, const Config& config, Tensor rounding_key);
// Behind it, the room for codes of weights where the device's products want those. Error (usage) where the device does
// not have these products, or not of these sizes.
void allocate_weight_codes(WeightSet& weights, Ops& ops, Arena& codes);
// Of one weight, none joining it.
void allocate_weight_codes(Weight& weight, Ops& ops, Arena& codes);

}  // namespace nmoe
