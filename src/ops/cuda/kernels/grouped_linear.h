// Linear layers over ragged groups of rows. Contracts: ops/backend.h. The groups' sizes are read on the device;
// launches depend on shapes alone.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void grouped_linear_forward(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y);
void grouped_activation_forward(Context& ctx, Activation kind, Tensor x, Tensor w, Tensor offsets, Tensor row_weight,
                                Tensor pre, Tensor h);
void grouped_linear_backward_input(Context& ctx, Tensor dy, Tensor w, Tensor offsets, Tensor dx);
void grouped_linear_backward_weight(Context& ctx, Tensor x, Tensor dy, Tensor offsets, Tensor dw,
                                    bool accumulate = true);

}  // namespace nmoe::cuda
