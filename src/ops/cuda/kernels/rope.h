// Rotary position embedding. Contracts: ops/backend.h. A device cannot report a position outside of the tables: what it
// would rotate becomes NaN, which the loss then shows.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void rope_forward(Context& ctx, const RopeArgs& args);
void rope_backward(Context& ctx, const RopeArgs& args);

}  // namespace nmoe::cuda
