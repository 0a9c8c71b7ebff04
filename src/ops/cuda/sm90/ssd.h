// The SSD scan by wgmma: BF16 on Hopper, for the sizes that sm90_ssd_takes (ops/cuda/plans/ssd.h) says. Compiled for
// sm_90a only.
#pragma once

#include "ops/contracts/ssd.h"
#include "ops/cuda/plans/ssd.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda::sm90 {

// Shapes as in the contract, checked by the caller; there are tokens. `tables` are filled in. Rows are aligned to 16
// bytes. The same bits every time. No scratch but the plan's.
void ssd_forward(Context& ctx, const SsdForward& args, const SsdTables& tables);

// plan.states at chunks' beginnings (Chunk::before), and plan.dstates, their gradients; behind a sequence's last chunk
// dfinal_state, if that is defined, and dinitial_state.
void ssd_states(Context& ctx, const SsdBackward& args, const SsdBackwardPlan& plan);
// dx, db, dc, ddt and plan.parts, from states and their gradients.
void ssd_gradients(Context& ctx, const SsdBackward& args, const SsdBackwardPlan& plan);

}  // namespace nmoe::cuda::sm90
