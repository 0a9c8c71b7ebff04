// The SSD scan forward by wgmma: BF16 on Hopper, for the sizes that sm90_ssd_takes (ops/cuda/plans/ssd.h) says.
// Compiled for sm_90a only.
#pragma once

#include "ops/contracts/ssd.h"
#include "ops/cuda/plans/ssd.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda::sm90 {

// Shapes as in the contract, checked by the caller; there are tokens. `tables` are filled in. x, b, c and y are aligned
// to 16 bytes. The same bits every time. No scratch.
void ssd_forward(Context& ctx, const SsdForward& args, const SsdTables& tables);

}  // namespace nmoe::cuda::sm90
