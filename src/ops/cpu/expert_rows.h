// Experts' rows, as they are measured: offsets [E + 1] i32 say whose they are (contracts/quantize.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "ops/contracts/linear.h"
#include "ops/cpu/context.h"
#include "tensor/low_precision.h"

namespace nmoe::cpu {

// Whose row `row` is, of those in front of the last offset.
inline int64_t expert_of(std::span<const int32_t> offsets, int64_t row) {
  return std::ranges::upper_bound(offsets, row) - offsets.begin() - 1;
}

// amax [E] stat = the largest magnitude of each expert's rows [R, width] f32.
inline void expert_abs_max(Context& ctx, const OperandRows& rows, Tensor offsets, Tensor amax) {
  if (ctx.counting()) return;
  const int64_t width = rows.width();
  ctx.pool.parallel_for(amax.dim(0), [&](int64_t e, int) {
    uint32_t bits = 0;
    for (int64_t row = offsets.data<int32_t>()[e]; row < offsets.data<int32_t>()[e + 1]; ++row) {
      const int64_t source = rows.index.defined() ? rows.index.data<int32_t>()[row] : row;
      const float* const x = rows.source.data<float>() + source * width;
      for (int64_t i = 0; i < width; ++i) bits = std::max(bits, magnitude_bits(x[i]));
    }
    amax.data<float>()[e] = amax_of_bits(bits);
  });
}

}  // namespace nmoe::cpu
