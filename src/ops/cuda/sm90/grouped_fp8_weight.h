// Gradients of experts' weights from FP8 operands on Hopper by TMA and wgmma. Compiled for sm_90a only.
#pragma once

#include "ops/contracts/quantize.h"
#include "ops/cuda/plans/block_operands.h"
#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// dw_e = or += dy_e^T x_e, over the rows [offsets[e], offsets[e + 1]) of each group, from codes of their columns.
struct GroupedFp8Weight {
  ColumnCodes x;         // of [R, in]
  ColumnCodes dy;        // of [R, out]
  int64_t num_rows = 0;  // R
  Tensor offsets;        // [E + 1] i32
  TileOrder order;       // scratch (claim_gradient_order)
  Tensor dw;             // = or += [E, out, in] F32
  bool accumulate = false;
  Tensor squares;  // as GroupedLinearBackwardWeight has them
};

// in and out are multiples of 16. Tensor cores sum each 128 rows; those sums, times both scales, are added in fp32 in
// the order of rows, and so are the sums of pieces (contracts/pieces.h). A group without rows gives zeros, or leaves dw
// as it is with accumulate.
void grouped_fp8_weight(Context& ctx, const GroupedFp8Weight& args);

}  // namespace nmoe::cuda::sm90
