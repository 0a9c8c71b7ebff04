#include <cmath>

#include "ops/cpu/operations.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

// Rows whose contributions to dgain are added into one partial sum: a choice by the shape alone, bounded so that the
// partial sums stay small beside the rows.
int64_t chunk_rows(int64_t num_rows, int64_t width) {
  constexpr int64_t kMaxChunks = 64;
  return std::max(task_rows(width), ceil_div(num_rows, kMaxChunks));
}

// One group: y = u rstd gain. Returns rstd.
template <class Real>
Real norm_group(const Real* x, const Real* z, const Real* gain, int64_t width, Real eps, Real* y) {
  Real squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; ++i) {
    const Real u = x[i] * (z[i] / (1 + exp_approx(-z[i])));
    y[i] = u;
    squares += u * u;
  }
  const Real rstd = 1 / std::sqrt(squares / static_cast<Real>(width) + eps);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) y[i] = y[i] * rstd * gain[i];
  return rstd;
}

// One group's tensors in backward.
template <class Real>
struct Group {
  const Real *x, *z, *gain, *dy;
  Real rstd;
  Real *dx, *dz, *dgain;
};

// With n = u rstd and g = dy gain:  du = rstd (g - n mean(g n)),  dx = du silu(z),  dz = du x silu'(z),  dgain += dy n.
template <class Real>
void backward_group(const Group<Real>& of, int64_t width) {
  const auto& [x, z, gain, dy, rstd, dx, dz, dgain] = of;
  Real projection = 0;
#pragma omp simd reduction(+ : projection)
  for (int64_t i = 0; i < width; ++i) {
    const Real n = x[i] * (z[i] / (1 + exp_approx(-z[i]))) * rstd;
    dgain[i] += dy[i] * n;
    projection += dy[i] * gain[i] * n;
  }
  const Real mean = projection / static_cast<Real>(width);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const Real gate = 1 / (1 + exp_approx(-z[i])), silu = z[i] * gate;
    const Real du = rstd * (dy[i] * gain[i] - x[i] * silu * rstd * mean);
    dx[i] = du * silu;
    dz[i] = du * x[i] * gate * (1 + z[i] * (1 - gate));
  }
}

}  // namespace

template <class Real>
void gated_norm_forward(Context& ctx, const GatedNormForward& args) {
  if (ctx.counting()) return;
  const int64_t num_rows = args.x.dim(0), width = args.x.dim(1), groups = args.num_groups, size = width / groups;
  const Real* const gain = args.gain.data<Real>();
  parallel_blocks(ctx, num_rows, task_rows(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const Real* const x = args.x.data<Real>() + row * width;
      const Real* const z = args.z.rows_data<Real>() + row * args.z.stride();
      Real* const y = args.y.data<Real>() + row * width;
      Real* const rstd = args.rstd.data<Real>() + row * groups;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = g * size;
        rstd[g] = norm_group(x + at, z + at, gain + at, size, static_cast<Real>(args.eps), y + at);
      }
    }
  });
}

template <class Real>
void gated_norm_backward(Context& ctx, const GatedNormBackward& args) {
  const int64_t num_rows = args.x.dim(0), width = args.x.dim(1), groups = args.rstd.dim(1), size = width / groups;
  const int64_t chunk = chunk_rows(num_rows, width), num_chunks = ceil_div(num_rows, chunk);
  ArenaScope scratch(ctx.scratch);
  const Tensor partial_sums = scratch.allocate(DTypeOf<Real>::value, {num_chunks, width});
  if (ctx.counting()) return;
  Real* const partials = partial_sums.data<Real>();
  parallel_blocks(ctx, num_rows, chunk, [&](int64_t begin, int64_t end, int) {
    Real* const partial = partials + begin / chunk * width;
    std::fill(partial, partial + width, Real{0});
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = g * size, place = row * width + at;
        backward_group<Real>({.x = args.x.data<Real>() + place,
                              .z = args.z.rows_data<Real>() + row * args.z.stride() + at,
                              .gain = args.gain.data<Real>() + at,
                              .dy = args.dy.data<Real>() + place,
                              .rstd = args.rstd.data<Real>()[row * groups + g],
                              .dx = args.dx.data<Real>() + place,
                              .dz = args.dz.rows_data<Real>() + row * args.dz.stride() + at,
                              .dgain = partial + at},
                             size);
      }
    }
  });
  Real* const dgain = args.dgain.data<Real>();
  for (int64_t i = 0; i < num_chunks; ++i) {
    const Real* const partial = partials + i * width;
#pragma omp simd
    for (int64_t w = 0; w < width; ++w) dgain[w] += partial[w];
  }
}

NMOE_CPU_INSTANTIATE(gated_norm_forward, GatedNormForward)
NMOE_CPU_INSTANTIATE(gated_norm_backward, GatedNormBackward)

}  // namespace nmoe::cpu
