// The formats of the operands of a model's products: those of run.precision, as restricted by [precision].
//
//   format  forward and the gradient of inputs  the gradient of weights
//   fp8     E4M3                                not rounded; experts' E4M3 with precision.fp8_weight_gradients
//   mxfp8   MXFP8                               MXFP8
//   nvfp4   NVFP4                               NVFP4, transformed (precision.nvfp4_transform)
//
// Gradients of outputs are rounded to NVFP4 stochastically (precision.nvfp4_random_rounding).
#pragma once

#include "base/kinds.h"
#include "config/config.h"
#include "model/spec/weights.h"

namespace nmoe {

// Of the products with one weight.
struct ProductFormats {
  OperandFormat operands = OperandFormat::kAct;         // of those that give outputs and the gradient of inputs
  OperandFormat weight_gradient = OperandFormat::kAct;  // of the one that gives the weight's gradient
};
ProductFormats product_formats(const WeightSpec& weight, const Config& config);

}  // namespace nmoe
