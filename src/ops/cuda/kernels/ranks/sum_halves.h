// Sums of BF16 over domains (contracts/across.h), of what has come from them.
#pragma once

#include <span>

#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda {

// target [n] = values[0] + values[1] and so on, each [n], all BF16, n > 0: widened, added in F32 in their order, and
// rounded once, to nearest, ties to even. `target` may be one of them. At most kMaxPeers values (ops/peers.h), each of
// which may begin anywhere.
void sum_halves(Context& ctx, std::span<const Tensor> values, const Tensor& target);

}  // namespace nmoe::cuda
