// Products of operands in MXFP8 and NVFP4 on Blackwell (OperandRounding::format, ops/contracts/linear.h): operands
// rounded to blocks, and multiplied as such. Compiled for sm_100a only.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/plans/block_operands.h"
#include "ops/cuda/plans/expert_product.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda::sm100 {

// `room`: of claim_blocks (ops/cuda/plans/block_operands.h). Shapes as in the contracts.
void rounded_product(Context& ctx, const LinearForward& args, const BlockProductScratch& room);
void rounded_product(Context& ctx, const LinearBackwardInput& args, const BlockProductScratch& room);
void rounded_product(Context& ctx, const LinearBackwardWeight& args, const BlockProductScratch& room);
void rounded_product(Context& ctx, const ExpertProduct& product, const BlockProductScratch& room);
void rounded_product(Context& ctx, const GroupedLinearBackwardWeight& args, const BlockProductScratch& room);

}  // namespace nmoe::cuda::sm100
