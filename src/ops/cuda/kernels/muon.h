// Muon. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void muon_step(Context& ctx, const MuonStep& args);

}  // namespace nmoe::cuda
