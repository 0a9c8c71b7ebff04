// RMSNorm. Contracts: ops/backend.h.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/context.h"

namespace nmoe::cpu {

template <class Real>
void rms_norm_forward(Context& ctx, Tensor x, Tensor gain, double eps, Tensor y, Tensor rstd);
template <class Real>
void rms_norm_backward(Context& ctx, Tensor x, Tensor gain, Tensor rstd, Tensor dy, Tensor dx, Tensor dgain,
                       bool accumulate_dx);

}  // namespace nmoe::cpu
