// Dense products.
#pragma once

#include <cstdint>

#include "ops/cuda/plans/block_operands.h"
#include "ops/cuda/plans/rounding.h"

namespace nmoe::cuda {

// cuBLASLt's workspace, of the size that NVIDIA recommends for Hopper.
constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;
inline Tensor claim_product_workspace(ArenaScope& scope) {
  return scope.allocate(DType::kU8, {kProductWorkspaceBytes});
}

enum class LinearEngine {
  kVendor,  // cuBLASLt's products of what is stored
  kCodes,   // of FP8 codes (sm90/grouped_fp8.h)
  kBlocks,  // of blocks with scales (sm100/rounded_products.h)
};
struct LinearPlan {
  LinearEngine engine = LinearEngine::kVendor;
  Tensor workspace = {};            // kVendor
  RowCodes codes = {};              // kCodes: of rows that came without
  BlockProductScratch blocks = {};  // kBlocks
};
template <class Arguments>
LinearPlan plan_product(Planner& to, const Arguments& args) {
  if (multiplies_blocks(to.kernels, args.rounding)) {
    BlockProductScratch blocks = claim_blocks(to.scope, args);
    blocks.workspace = claim_product_workspace(to.scope);
    blocks.product_scale = to.scope.allocate(DType::kF32, {2});
    return {.engine = LinearEngine::kBlocks, .blocks = blocks};
  }
  return {.workspace = claim_product_workspace(to.scope)};
}
// Where weights may be codes.
template <class Arguments>
LinearPlan plan_linear(Planner& to, const Arguments& args, const Tensor& rows) {
  if (!args.rounding.weight.defined()) return plan_product(to, args);
  return {.engine = LinearEngine::kCodes, .codes = claim_row_codes(to.scope, args.rounding, rows)};
}
inline LinearPlan plan(Planner& to, const LinearForward& args) { return plan_linear(to, args, args.x); }
inline LinearPlan plan(Planner& to, const LinearActivationForward& args) { return plan_linear(to, args, args.x); }
inline LinearPlan plan(Planner& to, const LinearBackwardInput& args) { return plan_linear(to, args, args.dy); }
inline LinearPlan plan(Planner& to, const LinearBackwardWeight& args) { return plan_product(to, args); }

}  // namespace nmoe::cuda
