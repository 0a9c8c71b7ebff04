// Biases of experts' products (ops/contracts/linear.h).
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// Added to the rows of y [R, out] that the offsets name; nothing where there is none.
void add_expert_bias(Context& ctx, const ExpertBias& bias, const Tensor& offsets, const Tensor& y);

}  // namespace nmoe::cuda
