#include "ops/cpu/operations.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {

template <class Real>
void gate_forward(Context& ctx, const GateForward& args) {
  if (ctx.counting()) return;
  const int64_t width = args.x.dim(1);
  const bool is_silu = args.function == GateFunction::kSilu;
  parallel_blocks(ctx, args.x.dim(0), task_rows(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const Real* const x = args.x.data<Real>() + row * width;
      const Real* const gate = args.gate.rows_data<Real>() + row * args.gate.stride();
      Real* const y = args.y.data<Real>() + row * width;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const Real open = 1 / (1 + exp_approx(-gate[i]));
        y[i] = x[i] * (is_silu ? gate[i] * open : open);
      }
    }
  });
}

template <class Real>
void gate_backward(Context& ctx, const GateBackward& args) {
  if (ctx.counting()) return;
  const int64_t width = args.x.dim(1);
  const bool is_silu = args.function == GateFunction::kSilu;
  parallel_blocks(ctx, args.x.dim(0), task_rows(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const Real* const x = args.x.data<Real>() + row * width;
      const Real* const gate = args.gate.rows_data<Real>() + row * args.gate.stride();
      const Real* const dy = args.dy.data<Real>() + row * width;
      Real* const dx = args.dx.data<Real>() + row * width;
      Real* const dgate = args.dgate.rows_data<Real>() + row * args.dgate.stride();
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const Real gradient = dy[i];
        const Real open = 1 / (1 + exp_approx(-gate[i])), slope = 1 - open;
        dx[i] = gradient * (is_silu ? gate[i] * open : open);
        dgate[i] = gradient * x[i] * (is_silu ? open * (1 + gate[i] * slope) : open * slope);
      }
    }
  });
}

NMOE_CPU_INSTANTIATE(gate_forward, GateForward)
NMOE_CPU_INSTANTIATE(gate_backward, GateBackward)

}  // namespace nmoe::cpu
