// RMSNorm. Contracts: ops/backend.h. In forward y may be the storage of x.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

void rms_norm_forward(Context& ctx, Tensor x, Tensor gain, double eps, Tensor y, Tensor rstd);
void rms_norm_backward(Context& ctx, Tensor x, Tensor gain, Tensor rstd, Tensor dy, Tensor dx, Tensor dgain,
                       bool accumulate_dx);

}  // namespace nmoe::cuda
