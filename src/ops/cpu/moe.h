// Placement plan, dispatch and combine. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

void moe_plan(Context& ctx, Tensor top_idx, const MoePlan& plan, Tensor counts);
template <class Real>
void moe_dispatch(Context& ctx, Tensor x, const MoePlan& plan, Tensor rows);
template <class Real>
void moe_combine(Context& ctx, Tensor rows, const MoePlan& plan, Tensor y, bool accumulate);
template <class Real>
void moe_dispatch_weights(Context& ctx, Tensor weights, const MoePlan& plan, Tensor row_weight);
template <class Real>
void moe_combine_weights(Context& ctx, Tensor row_weight, const MoePlan& plan, Tensor weights);

}  // namespace nmoe::cpu
