// Products of operands in MXFP8 and NVFP4 on Blackwell (OperandRounding::format, ops/contracts/linear.h): operands
// rounded to blocks, and multiplied as such. Compiled for sm_100a only.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda::sm100 {

// Each claims its scratch (ops/cuda/block_scratch.h: claim_blocks). Shapes as in the contracts, checked by the caller.
void rounded_product(Context& ctx, const LinearForward& args);
void rounded_product(Context& ctx, const LinearBackwardInput& args);
void rounded_product(Context& ctx, const LinearBackwardWeight& args);
void rounded_product(Context& ctx, const GroupedLinearForward& args);
void rounded_product(Context& ctx, const GroupedLinearBackwardInput& args);
void rounded_product(Context& ctx, const GroupedLinearBackwardWeight& args);
// pre = x w^T, and dh = dy w, alone.
void rounded_product(Context& ctx, const GroupedActivationForward& args);
void rounded_product(Context& ctx, const GroupedActivationBackward& args, Tensor dh);

}  // namespace nmoe::cuda::sm100
