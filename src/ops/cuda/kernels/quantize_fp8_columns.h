// FP8 codes of the columns of BF16 rows (ColumnCodes, contracts/quantize.h), for gradients of weights.
#pragma once

#include "ops/contracts/activation.h"
#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// Rows as they lie, or picked, in groups as offsets [G + 1] i32 says. x is as
// takes_fp8 (quantize_fp8.h) says; codes are aligned to 16 bytes.
void quantize_fp8_columns(Context& ctx, const OperandRows& x, Tensor offsets, const ColumnCodes& columns);

// args.h_columns = of what the activation makes of args.pre, BF16, as if h were stored first.
void activation_fp8_columns(Context& ctx, const ActivationForward& args);

}  // namespace nmoe::cuda
