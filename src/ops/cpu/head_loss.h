// Head and cross-entropy in chunks. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

template <class Real>
void head_loss(Context& ctx, const HeadLoss& args);

}  // namespace nmoe::cpu
