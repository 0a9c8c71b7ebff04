// Grouped products (GroupedLinearForward and its kin in the operations' contracts) by TMA and wgmma: BF16 on Hopper.
// Compiled for sm_90a only.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// Whether these kernels take such rows and weights: BF16, in whole 16 bytes.
bool grouped_takes(Tensor rows, Tensor w, Tensor other_rows);

// Shapes as in the contracts, checked by the caller, R > 0. Rows from offsets[E] on are neither read nor written.
// Gradients of weights take scratch, and so come here in a counting run too.
void grouped_forward(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y);
void grouped_swiglu(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor row_weight, Tensor pre, Tensor h);
void grouped_backward_input(Context& ctx, Tensor dy, Tensor w, Tensor offsets, Tensor dx);
// row_sums: scratch (ops/cuda/scratch.h).
void grouped_swiglu_backward(Context& ctx, const GroupedActivationBackward& args, Tensor row_sums);
void grouped_backward_weight(Context& ctx, Tensor x, Tensor dy, Tensor offsets, Tensor dw, bool accumulate);

}  // namespace nmoe::cuda::sm90
