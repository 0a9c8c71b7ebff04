// Muon. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

template <class Real>
void muon_step(Context& ctx, const MuonStep& args);

}  // namespace nmoe::cpu
