// Placement plan, dispatch and combine. Contracts: ops/backend.h. At most kMaxPlanExperts experts. A choice that is no
// expert stops the device (a trap), which the next synchronisation reports.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

constexpr int64_t kMaxPlanExperts = 4096;

void moe_plan(Context& ctx, Tensor top_idx, const MoePlan& plan, Tensor counts);
void moe_dispatch(Context& ctx, Tensor x, const MoePlan& plan, Tensor rows);
void moe_combine(Context& ctx, Tensor rows, const MoePlan& plan, Tensor y, bool accumulate);
void moe_dispatch_weights(Context& ctx, Tensor weights, const MoePlan& plan, Tensor row_weight);
void moe_combine_weights(Context& ctx, Tensor row_weight, const MoePlan& plan, Tensor weights);

}  // namespace nmoe::cuda
