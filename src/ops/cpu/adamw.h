// AdamW. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

template <class Real>
void adamw_step(Context& ctx, const AdamWStep& args);

}  // namespace nmoe::cpu
