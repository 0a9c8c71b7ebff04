// Dense matrix products by cuBLASLt. Contracts: ops/backend.h.
//
// BF16 operands are multiplied with F32 accumulation, F32 operands without TF32. The algorithm of a product depends on
// its shape, its dtypes and how its pointers are aligned: cuBLASLt is asked once per process and never while a step is
// recorded that ran before.
#pragma once

#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda {

void linear_forward(Context& ctx, Tensor x, Tensor w, Tensor y, bool accumulate);
void linear_backward_input(Context& ctx, Tensor dy, Tensor w, Tensor dx, bool accumulate);
void linear_backward_weight(Context& ctx, Tensor x, Tensor dy, Tensor dw, bool accumulate = true);

}  // namespace nmoe::cuda
