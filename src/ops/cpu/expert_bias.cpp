#include "ops/cpu/expert_bias.h"

#include <algorithm>

#include "ops/contracts/bias.h"
#include "ops/cpu/operations.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

// Calls fn(expert, row) for all rows that the offsets name, in parallel.
template <class Fn>
void for_each_row(Context& ctx, Tensor offsets, int64_t width, const Fn& fn) {
  const int32_t* const offset = offsets.data<int32_t>();
  const int64_t num_experts = offsets.dim(0) - 1;
  parallel_blocks(ctx, offset[num_experts], task_rows(width), [&](int64_t begin, int64_t end, int) {
    int64_t expert = std::upper_bound(offset, offset + num_experts + 1, begin) - offset - 1;
    for (int64_t row = begin; row < end; ++row) {
      while (row >= offset[expert + 1]) ++expert;
      fn(expert, row);
    }
  });
}

}  // namespace

template <class Real>
void add_expert_bias(Context& ctx, const ExpertBias& bias, Tensor offsets, Tensor y) {
  if (ctx.counting() || !bias.defined()) return;
  const int64_t width = y.dim(1);
  const Real* const weights = bias.row_weight.data_or_null<Real>();
  for_each_row(ctx, offsets, width, [&](int64_t expert, int64_t row) {
    const Real* const values = bias.values.data<Real>() + expert * width;
    const Real weight = weights != nullptr ? weights[row] : Real{1};
    Real* const out = y.data<Real>() + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) out[i] += weight * values[i];
  });
}
template void add_expert_bias<float>(Context&, const ExpertBias&, Tensor, Tensor);
template void add_expert_bias<double>(Context&, const ExpertBias&, Tensor, Tensor);

template <class Real>
void expert_bias_backward(Context& ctx, const ExpertBiasBackward& args) {
  const int64_t width = args.dy.width(), num_experts = args.offsets.dim(0) - 1;
  ArenaScope scope(ctx.scratch);
  const Tensor sums = scope.allocate(DTypeOf<Real>::value, {ctx.num_threads(), 2, width});  // of a chunk, of chunks
  if (ctx.counting()) return;
  const int32_t* const offset = args.offsets.data<int32_t>();
  const int32_t* const index = args.dy.index.data_or_null<int32_t>();
  const Real* const weights = args.bias.row_weight.data_or_null<Real>();
  const auto dy_row = [&](int64_t row) {
    return args.dy.source.data<Real>() + (index != nullptr ? index[row] : row) * width;
  };
  ctx.pool.parallel_for(num_experts, [&](int64_t expert, int thread) {
    Real* const chunk = sums[thread][0].template data<Real>();
    Real* const total = sums[thread][1].template data<Real>();
    const int64_t first = offset[expert], last = offset[expert + 1];
    for (int64_t begin = first; begin < last; begin += kBiasChunkRows) {
      std::fill_n(chunk, width, Real{0});
      for (int64_t row = begin; row < std::min(begin + kBiasChunkRows, last); ++row) {
        const Real* const dy = dy_row(row);
        const Real weight = weights != nullptr ? weights[row] : Real{1};
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) chunk[i] += weight * dy[i];
      }
      if (begin == first) {
        std::copy_n(chunk, width, total);
      } else {
        for (int64_t i = 0; i < width; ++i) total[i] += chunk[i];
      }
    }
    Real* const dvalues = args.dvalues.data<Real>() + expert * width;
    for (int64_t i = 0; i < width && first < last; ++i) dvalues[i] += total[i];
  });
  if (!args.drow_weight.defined()) return;
  for_each_row(ctx, args.offsets, width, [&](int64_t expert, int64_t row) {
    args.drow_weight.data<Real>()[row] += dot(dy_row(row), args.bias.values.data<Real>() + expert * width, width);
  });
}

NMOE_CPU_INSTANTIATE(expert_bias_backward, ExpertBiasBackward)

}  // namespace nmoe::cpu
