// MLP activations. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

template <class Real>
void activation_forward(Context& ctx, Activation kind, Tensor pre, Tensor row_weight, Tensor h);
template <class Real>
void activation_backward(Context& ctx, Activation kind, Tensor pre, Tensor row_weight, Tensor dh, Tensor dpre,
                         Tensor drow_weight);

}  // namespace nmoe::cpu
