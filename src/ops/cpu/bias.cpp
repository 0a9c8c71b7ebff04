#include "ops/contracts/bias.h"

#include "ops/cpu/operations.h"

namespace nmoe::cpu {

template <class Real>
void bias_forward(Context& ctx, const BiasForward& args) {
  if (ctx.counting()) return;
  const int64_t num_rows = args.y.dim(0), width = args.y.dim(1);
  const Real* const bias = args.bias.data<Real>();
  const Real* const x = args.x.data_or_null<Real>();
  Real* const y = args.y.data<Real>();
  parallel_blocks(ctx, num_rows, task_rows(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      Real* const out = y + row * width;
      if (x == nullptr) {
        std::copy_n(bias, width, out);
      } else {
        const Real* const in = x + row * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) out[i] = in[i] + bias[i];
      }
    }
  });
}

template <class Real>
void bias_backward(Context& ctx, const BiasBackward& args) {
  const int64_t num_rows = args.dy.dim(0), width = args.dy.dim(1), num_chunks = ceil_div(num_rows, kBiasChunkRows);
  ArenaScope scratch(ctx.scratch);
  const Tensor partial_sums = scratch.allocate(DTypeOf<Real>::value, {num_chunks, width});
  if (ctx.counting() || num_rows == 0) return;
  const Real* const dy = args.dy.rows_data<Real>();
  const int64_t stride = args.dy.stride();
  Real* const partials = partial_sums.data<Real>();
  parallel_blocks(ctx, num_rows, kBiasChunkRows, [&](int64_t begin, int64_t end, int) {
    Real* const partial = partials + begin / kBiasChunkRows * width;
    std::fill(partial, partial + width, Real{0});
    for (int64_t row = begin; row < end; ++row) {
      const Real* const in = dy + row * stride;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) partial[i] += in[i];
    }
  });
  for (int64_t chunk = 1; chunk < num_chunks; ++chunk) {
    const Real* const partial = partials + chunk * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) partials[i] += partial[i];
  }
  Real* const dbias = args.dbias.data<Real>();
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) dbias[i] += partials[i];
}

NMOE_CPU_INSTANTIATE(bias_forward, BiasForward)
NMOE_CPU_INSTANTIATE(bias_backward, BiasBackward)

}  // namespace nmoe::cpu
