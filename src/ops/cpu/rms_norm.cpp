#include <cmath>

#include "ops/cpu/fp8_codes.h"
#include "ops/cpu/operations.h"

namespace nmoe::cpu {
namespace {

// Vector i of contracts/norm.h is number `inner` of row `outer`.
struct Place {
  int64_t outer, inner;
};
template <class Real>
struct Vectors {
  explicit Vectors(const Tensor& x) : first(x.rows_data<Real>()), stride(x.stride()), width(x.dim(-1)) {}
  Real* operator[](Place place) const { return first + place.outer * stride + place.inner * width; }

  Real* first;
  int64_t stride, width;
};

// Rows whose contributions to dgain are added into one partial sum: a choice by the shape alone,
// bounded so that the partial sums stay small beside the rows.
int64_t gain_chunk_rows(int64_t num_rows, int64_t width) {
  constexpr int64_t kMaxChunks = 64;
  return std::max(task_rows(width), ceil_div(num_rows, kMaxChunks));
}

template <class Real>
Real mean_of_products(const Real* a, const Real* b, int64_t size) {
  Real total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < size; ++i) total += a[i] * b[i];
  return total / static_cast<Real>(size);
}

// Of no offset -0, which leaves every gain as it is, -0 as well.
template <class Real>
Real addend(double gain_offset) {
  return gain_offset == 0.0 ? Real{-0.0} : static_cast<Real>(gain_offset);
}

// With n = x rstd and g = dy (gain + offset):  dx = rstd (g - n mean(g n)),  dgain_partial += dy n.
template <class Real>
void backward_row(const Real* x, const Real* gain, Real offset, Real rstd, const Real* dy, Real* dx,
                  Real* dgain_partial, int64_t width, bool accumulate_dx) {
  Real projection = 0;
#pragma omp simd reduction(+ : projection)
  for (int64_t i = 0; i < width; ++i) {
    const Real scaled = dy[i] * (x[i] * rstd);
    dgain_partial[i] += scaled;
    projection += scaled * (gain[i] + offset);
  }
  const Real slope = rstd * rstd * projection / static_cast<Real>(width);
  if (accumulate_dx) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dx[i] += rstd * (gain[i] + offset) * dy[i] - slope * x[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dx[i] = rstd * (gain[i] + offset) * dy[i] - slope * x[i];
  }
}

}  // namespace

template <class Real>
void rms_norm_forward(Context& ctx, const RmsNormForward& args) {
  const Tensor x = args.x, gain = args.gain;
  const double eps = args.eps;
  const Real offset = addend<Real>(args.gain_offset);
  const Tensor y = args.y, rstd = args.rstd;
  const int64_t num_rows = norm_vectors(x), width = x.dim(-1), per_row = norm_vectors_of_row(x);
  if (ctx.counting()) return;
  const Vectors<Real> inputs(x), outputs(y);
  const Real* gains = gain.data<Real>();
  Real* rstds = rstd.data<Real>();
  parallel_blocks(ctx, num_rows, task_rows(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const Place place{row / per_row, row % per_row};
      const Real* in = inputs[place];
      Real* out = outputs[place];
      const Real scale = 1 / std::sqrt(mean_of_products(in, in, width) + static_cast<Real>(eps));
      rstds[row] = scale;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) out[i] = in[i] * scale * (gains[i] + offset);
    }
  });
  write_codes<Real>(ctx, y, /*num_rows=*/{}, args.y_codes);
}

template <class Real>
void rms_norm_backward(Context& ctx, const RmsNormBackward& args) {
  const Tensor x = args.x, gain = args.gain, rstd = args.rstd, dy = args.dy, dx = args.dx, dgain = args.dgain;
  const bool accumulate_dx = args.accumulate_dx;
  const Real offset = addend<Real>(args.gain_offset);
  const int64_t num_rows = norm_vectors(x), width = x.dim(-1), per_row = norm_vectors_of_row(x);
  const int64_t chunk_rows = gain_chunk_rows(num_rows, width);
  const int64_t num_chunks = ceil_div(num_rows, chunk_rows);
  ArenaScope scratch(ctx.scratch);
  const Tensor partial_sums = scratch.allocate(DTypeOf<Real>::value, {num_chunks, width});
  if (ctx.counting()) return;
  const Vectors<Real> inputs(x), dys(dy), dxs(dx);
  const Real* gains = gain.data<Real>();
  const Real* rstds = rstd.data<Real>();
  Real* partials = partial_sums.data<Real>();
  parallel_blocks(ctx, num_rows, chunk_rows, [&](int64_t begin, int64_t end, int) {
    Real* partial = partials + begin / chunk_rows * width;
    std::fill(partial, partial + width, Real{0});
    for (int64_t row = begin; row < end; ++row) {
      const Place place{row / per_row, row % per_row};
      backward_row<Real>(inputs[place], gains, offset, rstds[row], dys[place], dxs[place], partial, width,
                         accumulate_dx);
    }
  });
  Real* dgains = dgain.data<Real>();
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const Real* partial = partials + chunk * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dgains[i] += partial[i];
  }
  write_codes<Real>(ctx, dx, /*num_rows=*/{}, args.dx_codes);
}

NMOE_CPU_INSTANTIATE(rms_norm_forward, RmsNormForward)
NMOE_CPU_INSTANTIATE(rms_norm_backward, RmsNormBackward)

}  // namespace nmoe::cpu
