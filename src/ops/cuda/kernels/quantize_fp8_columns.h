// FP8 codes of the columns of BF16 rows (ColumnCodes, contracts/quantize.h), for gradients of weights.
#pragma once

#include "ops/contracts/activation.h"
#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// Rows as they lie, or picked, in groups as offsets [G + 1] i32 says; undefined: one group of all. rows: = their codes
// in order, as Quantize leaves them, of the same reading; undefined: not wanted.
//
// What takes_fp8 (quantize_fp8.h) says of x, and that all codes are aligned to 16 bytes.
void quantize_fp8_columns(Context& ctx, const OperandRows& x, Tensor offsets, const ColumnCodes& columns,
                          const RowCodes& rows = {});

// args.h_columns = of what the activation makes of args.pre, BF16, as if h were stored first.
void activation_fp8_columns(Context& ctx, const ActivationForward& args);

// As product_codes (quantize_fp8.h), with columns = the codes of x's columns, where they are wanted.
RowCodes product_codes(Context& ctx, const OperandRounding& rounding, const OperandRows& x, Tensor offsets,
                       Tensor num_rows, const RowCodes& room, const ColumnCodes& columns);

}  // namespace nmoe::cuda
