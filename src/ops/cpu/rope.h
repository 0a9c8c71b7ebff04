// Rotary position embedding. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

template <class Real>
void rope_forward(Context& ctx, const RopeArgs& args);
template <class Real>
void rope_backward(Context& ctx, const RopeArgs& args);

}  // namespace nmoe::cpu
