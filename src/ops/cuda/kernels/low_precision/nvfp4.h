// Operands rounded to NVFP4 and widened to BF16, which holds what an element of E2M1 and a scale of E4M3 stand for:
// without the scales of tensors, which belong behind the product. The arithmetic of tensor/low_precision.h.
//
// A tensor is a group of rows: offsets [G + 1] i32; undefined: all rows are one. Rows that belong to no group are
// neither read nor written. amax [G] F32: the tensors' largest magnitudes.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// y [R, width] = x's rows, in order, in blocks along them.
void nvfp4_rows(Context& ctx, const OperandRows& x, Tensor offsets, const RandomRounding& random, Tensor y,
                Tensor amax);
// Weights [out, in], or of E experts, each a tensor, in tiles.
void nvfp4_weights(Context& ctx, Tensor w, Tensor y, Tensor amax);
// y [R', width] = x's rows in blocks along columns, each transformed before (random_hadamard) if `transform`: a group's
// rows with zeros up to whole blocks, group behind group.
void nvfp4_columns(Context& ctx, const OperandRows& x, Tensor offsets, bool transform, const RandomRounding& random,
                   Tensor y, Tensor amax);
// padded [G + 1] i32 = where nvfp4_columns leaves the groups.
void nvfp4_column_offsets(Context& ctx, Tensor offsets, Tensor padded);
// scale = what products of such operands are to be multiplied by. Of experts: scale [G], amax_b [G].
void nvfp4_expert_scales(Context& ctx, Tensor amax_a, Tensor amax_b, Tensor scale);
// Of a dense product: scale [2], behind the factor that of what is added to the product.
void nvfp4_dense_scale(Context& ctx, Tensor amax_a, Tensor amax_b, bool adds, Tensor scale);

}  // namespace nmoe::cuda
