// Operands of products in MXFP8 and NVFP4 as Blackwell's tensor cores take them (ops/cuda/plans/block_operands.h), from
// BF16: the blocks and numbers of ops/contracts/linear.h, with k along the rows of codes whatever is along those of
// BF16.
//
// offsets [E + 1] i32: groups of rows, to which blocks, scales and largest magnitudes belong; undefined: one group.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/plans/block_operands.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda::sm100 {

// tile_offsets [E + 1] i32 = how many tiles of 128 rows come before each group.
void count_tiles(Context& ctx, Tensor offsets, Tensor tile_offsets);

// x [R, K] in blocks along its rows, which are put in order.
void encode_rows(Context& ctx, const OperandRows& x, Tensor offsets, const RandomRounding& random,
                 const BlockOperand& to);
// x [R, C], columns as rows, in blocks along them; NVFP4: with `transform` each transformed before (random_hadamard).
// Group e has what begins at 128 times its tile offset, with zeros up to a multiple of 128.
void encode_columns(Context& ctx, const OperandRows& x, Tensor offsets, bool transform, const RandomRounding& random,
                    const BlockOperand& to);
// Weights [out, in] or [E, out, in], each a group, in blocks along `in`; and transposed, in blocks along `out`, each
// expert's in as many columns as are whole 128. NVFP4: in tiles of 16 x 16, to the same in both.
void encode_weights(Context& ctx, Tensor w, const BlockOperand& to);
void encode_weight_columns(Context& ctx, Tensor w, const BlockOperand& to);

}  // namespace nmoe::cuda::sm100
