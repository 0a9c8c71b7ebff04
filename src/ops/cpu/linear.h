// Dense and grouped matrix products. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

template <class Real>
void linear_forward(Context& ctx, Tensor x, Tensor w, Tensor y, bool accumulate);
template <class Real>
void linear_backward_input(Context& ctx, Tensor dy, Tensor w, Tensor dx, bool accumulate);
template <class Real>
void linear_backward_weight(Context& ctx, Tensor x, Tensor dy, Tensor dw, bool accumulate);
template <class Real>
void grouped_linear_forward(Context& ctx, Tensor x, Tensor w, Tensor offsets, Tensor y);
template <class Real>
void grouped_linear_backward_input(Context& ctx, Tensor dy, Tensor w, Tensor offsets, Tensor dx);
template <class Real>
void grouped_linear_backward_weight(Context& ctx, Tensor x, Tensor dy, Tensor offsets, Tensor dw, bool accumulate);

}  // namespace nmoe::cpu
