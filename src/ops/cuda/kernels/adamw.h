// AdamW. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void adamw_step(Context& ctx, const AdamWStep& args);

}  // namespace nmoe::cuda
