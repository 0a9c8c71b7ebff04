// The grouped products of grouped_linear.h by warpgroup matrix instructions: BF16 on Hopper.
// Compiled for sm_90a only.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/context.h"

namespace nmoe::cuda {

// Whether these kernels take such rows and weights: BF16, in whole 16 bytes.
bool sm90_grouped_takes(Tensor rows, Tensor w, Tensor other_rows);

// As in grouped_linear.h, R > 0. Gradients of weights take scratch, and so come here in a counting run too.
void sm90_grouped_forward(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y);
void sm90_grouped_swiglu(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor row_weight, Tensor pre, Tensor h);
void sm90_grouped_backward_input(Context& ctx, Tensor dy, Tensor w, Tensor offsets, Tensor dx);
void sm90_grouped_backward_weight(Context& ctx, Tensor x, Tensor dy, Tensor offsets, Tensor dw, bool accumulate);

}  // namespace nmoe::cuda
