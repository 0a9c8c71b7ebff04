// Embedding look-up and its gradient. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

template <class Real>
void embedding_forward(Context& ctx, Tensor ids, Tensor table, Tensor y);
template <class Real>
void embedding_backward(Context& ctx, Tensor ids, Tensor dy, Tensor dtable);

}  // namespace nmoe::cpu
