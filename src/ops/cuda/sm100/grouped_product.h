// Grouped products on Blackwell by TMA and tcgen05, of BF16 and of operands in MXFP8 and NVFP4. Compiled for sm_100a
// only, where nothing of it has run yet (docs/precision.md); `n selftest` holds it against the CPU before a run trusts
// it.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/plans/block_operands.h"
#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm100 {

// --- BF16, as GroupedEngine::kSm100 says. Shapes as in the contracts, checked by the caller, R > 0; rows are in order,
// not picked, and all begins at multiples of 16 bytes. Rows from offsets[E] on are neither read nor written.
void grouped_forward(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y);
void grouped_backward_input(Context& ctx, Tensor dy, Tensor w, Tensor offsets, Tensor dx);
void grouped_backward_weight(Context& ctx, Tensor x, Tensor dy, Tensor offsets, Tensor dw, bool accumulate,
                             const TileOrder& order);

// --- blocks with scales (ops/cuda/plans/block_operands.h; sm100/block_operands.h makes them), k along the rows of
// both.

// C [R, N] = the rows of a times those of b, by groups of a's rows; + addend, which may be C.
struct BlockRowsProduct {
  BlockOperand a;             // [R, K]
  BlockOperand b;             // rows [E * N, K], or [N, E * K']
  bool b_is_columns = false;  // the latter: an expert has every K' of k, a multiple of 128
  int64_t depth = 0;          // K
  Tensor offsets;             // [E + 1] i32; undefined: all rows go to the only expert
  Tensor tile_offsets;        // [E + 1] i32, with offsets: tiles of 128 rows before each expert's
  Tensor c;                   // = [R, N] BF16 or F32
  Tensor addend;              // as c; undefined: none
};
void block_rows_product(Context& ctx, const BlockRowsProduct& args);

// C_e [M, N] = a_e b_e^T, summed over the rows that an expert has; + C_e with `accumulate`.
struct BlockWeightProduct {
  BlockOperand a, b;    // [M, P] and [N, P]: the expert's rows from column 128 tile_offsets[e] on, zeros up to a 128
  Tensor offsets;       // [E + 1] i32
  Tensor tile_offsets;  // [E + 1] i32
  Tensor c;             // = [E, M, N] F32
  bool accumulate = false;
};
void block_weight_product(Context& ctx, const BlockWeightProduct& args, const TileOrder& order);

}  // namespace nmoe::cuda::sm100
