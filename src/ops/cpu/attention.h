// Causal attention and MLA's key/value expansion. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

template <class Real>
void attention_forward(Context& ctx, const AttentionForward& args);
template <class Real>
void attention_backward(Context& ctx, const AttentionBackward& args);
template <class Real>
void mla_expand_forward(Context& ctx, Tensor kv, Tensor k_rope, Tensor k, Tensor v);
template <class Real>
void mla_expand_backward(Context& ctx, Tensor dk, Tensor dv, Tensor dkv, Tensor dk_rope);

}  // namespace nmoe::cpu
