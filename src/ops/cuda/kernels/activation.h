// MLP activations. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void activation_forward(Context& ctx, Activation kind, Tensor pre, Tensor row_weight, Tensor h);
void activation_backward(Context& ctx, Activation kind, Tensor pre, Tensor row_weight, Tensor dh, Tensor dpre,
                         Tensor drow_weight);

}  // namespace nmoe::cuda
