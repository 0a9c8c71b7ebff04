// Router scores, selection, auxiliary losses, balancing bias. Contracts: ops/backend.h. At most kMaxRouterExperts
// experts and kMaxRouterTopK choices.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

constexpr int64_t kMaxRouterExperts = 4096;
constexpr int64_t kMaxRouterTopK = 32;

void router_forward(Context& ctx, const RouterForward& args);
void router_backward(Context& ctx, const RouterBackward& args);
void router_bias_update(Context& ctx, Tensor counts, Tensor bias, double rate, Tensor grad_scale);

}  // namespace nmoe::cuda
