// FP8 codes of the columns of BF16 rows (ColumnCodes, contracts/quantize.h), for gradients of weights.
#pragma once

#include "ops/contracts/activation.h"
#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// Rows as they lie, or picked, in groups as offsets [G + 1] i32 says. x is as
// takes_fp8 (quantize_fp8.h) says; codes are aligned to 16 bytes.
void quantize_fp8_columns(Context& ctx, const OperandRows& x, Tensor offsets, const ColumnCodes& columns);

// columns = of what the activation makes of pre, as if h were stored first: as ActivationForward
// (contracts/activation.h) says.
struct ActivatedColumns {
  Activation kind;
  Tensor pre;          // BF16; if there are codes, their values are not read
  RowCodes pre_codes;  // of pre, of F a multiple of a block's size; undefined: pre itself is read
  Tensor row_weight;
  Tensor offsets;
  ColumnCodes columns;
};
void activation_fp8_columns(Context& ctx, const ActivatedColumns& args);

}  // namespace nmoe::cuda
