// FP8 codes of BF16 rows and tiles by 16 bytes at a time: what Quantize (contracts/quantize.h) says, to the bit.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// Whether the functions below take x [..., C] and its codes: BF16, C a multiple of 16, aligned to 16 bytes.
bool takes_fp8(Tensor x, Tensor values);

// Rows as they lie, or picked, of which the codes are in order. num_rows [1] i32: how many there are; undefined: all.
void quantize_fp8_rows(Context& ctx, const OperandRows& x, Tensor num_rows, const RowCodes& codes);
// args.blocks is kTiles. Transposed codes want N to be a multiple of 16, too.
void quantize_fp8_tiles(Context& ctx, const Quantize& args);

// The codes of a product's rows: those that came with it, or, where rows are picked, `room`, into which codes that came
// are spread by x.row_of (num_rows is not read then, and rows of `room` that row_of does not name stay as they were);
// else made in `room`.
RowCodes product_codes(Context& ctx, const OperandRounding& rounding, const OperandRows& x, Tensor num_rows,
                       const RowCodes& room);

}  // namespace nmoe::cuda
