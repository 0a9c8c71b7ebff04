// The largest magnitudes of experts' rows: the tensors that have a scale in NVFP4, as checks of precision look at them.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/cuda/runtime/context.h"

namespace nmoe::cuda {

// amax [E] F32 = of rows [offsets[e], offsets[e + 1]), of any act dtype. offsets [E + 1] i32.
void expert_abs_max(Context& ctx, const OperandRows& rows, Tensor offsets, Tensor amax);

// Whose row `row` is, of those in front of the last of E + 1 offsets.
__device__ inline int expert_of(const int32_t* offsets, int num_experts, int64_t row) {
  int expert = 0, above = num_experts;  // offsets[expert] <= row < offsets[above]
  while (above - expert > 1) {
    const int middle = (expert + above) / 2;
    (offsets[middle] <= row ? expert : above) = middle;
  }
  return expert;
}

}  // namespace nmoe::cuda
