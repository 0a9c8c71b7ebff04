// Operands rounded to MXFP8 and widened to BF16, which holds what an element of E4M3 and a scale of a power of two
// stand for. The arithmetic of tensor/low_precision.h.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// y = x [..., width] in blocks along its rows.
void mxfp8_rows(Context& ctx, Tensor x, Tensor y);
// y = w: weights [out, in], or of E experts, in blocks along `out`.
void mxfp8_outputs(Context& ctx, Tensor w, Tensor y);
// y [R, width] = x's rows, in order, in blocks along columns, none of which crosses groups of rows: offsets [G + 1]
// i32; undefined: one group.
void mxfp8_columns(Context& ctx, const OperandRows& x, Tensor offsets, Tensor y);

}  // namespace nmoe::cuda
