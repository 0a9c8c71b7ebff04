// Router scores, selection, auxiliary losses, balancing bias. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

template <class Real>
void router_forward(Context& ctx, const RouterForward& args);
template <class Real>
void router_backward(Context& ctx, const RouterBackward& args);
template <class Real>
void router_bias_update(Context& ctx, Tensor counts, Tensor bias, double rate, Tensor grad_scale);

}  // namespace nmoe::cpu
