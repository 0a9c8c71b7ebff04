// Biases of experts' products (contracts/linear.h).
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

// Added to the rows of y [R, out] that the offsets name; nothing where there is none.
template <class Real>
void add_expert_bias(Context& ctx, const ExpertBias& bias, Tensor offsets, Tensor y);

}  // namespace nmoe::cpu
