// Operands in MXFP8 where tensor cores have no such format: rounded, and widened to BF16, which holds what an element
// of E4M3 and a scale of a power of two stand for. Products of those differ from tensor cores with the format in the
// order and width of sums alone.
//
// widen(): `widened` is `args` with room for operands in place of them, as claim_widened (ops/cuda/scratch.h) makes it.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void widen(Context& ctx, const LinearForward& args, const LinearForward& widened);
void widen(Context& ctx, const LinearActivationForward& args, const LinearActivationForward& widened);
void widen(Context& ctx, const LinearBackwardInput& args, const LinearBackwardInput& widened);
void widen(Context& ctx, const LinearBackwardWeight& args, const LinearBackwardWeight& widened);
void widen(Context& ctx, const GroupedLinearForward& args, const GroupedLinearForward& widened);
void widen(Context& ctx, const GroupedActivationForward& args, const GroupedActivationForward& widened);
void widen(Context& ctx, const GroupedLinearBackwardInput& args, const GroupedLinearBackwardInput& widened);
void widen(Context& ctx, const GroupedActivationBackward& args, const GroupedActivationBackward& widened);
void widen(Context& ctx, const GroupedLinearBackwardWeight& args, const GroupedLinearBackwardWeight& widened);

}  // namespace nmoe::cuda
