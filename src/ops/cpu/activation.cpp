#include "ops/cpu/fp8_codes.h"
#include "ops/cpu/operations.h"
#include "ops/cpu/vector_math.h"

namespace nmoe::cpu {
namespace {

template <class Real>
Real sigmoid(Real x) {
  return 1 / (1 + exp_approx(-x));
}

// max(x, 0) that lets a NaN through.
template <class Real>
Real relu(Real x) {
  return x < 0 ? Real{0} : x;
}

// Clamped SwiGLU's limits, which let a NaN through.
template <class Real>
Real clamped(Real x) {
  return x > Real{kSwiGluLimit} ? Real{kSwiGluLimit} : x;
}
template <class Real>
Real clamped_both(Real x) {
  return x < -Real{kSwiGluLimit} ? -Real{kSwiGluLimit} : clamped(x);
}

template <class Real>
void forward_row(Activation kind, const Real* pre, Real weight, Real* h, int64_t width) {
  const Real* up = pre + width;
  switch (kind) {
    case Activation::kSwiGlu:
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) h[i] = pre[i] * sigmoid(pre[i]) * up[i] * weight;
      return;
    case Activation::kReluSquared:
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) h[i] = relu(pre[i]) * relu(pre[i]) * weight;
      return;
    case Activation::kClampedSwiGlu:
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const Real gate = clamped(pre[i]);
        h[i] = (clamped_both(up[i]) + 1) * (gate * sigmoid(static_cast<Real>(kSwiGluAlpha) * gate)) * weight;
      }
      return;
  }
}

// Returns the gradient of the row's weight. Reads element i of pre before it writes element i of
// dpre: they may be the same row.
template <class Real>
Real backward_row(Activation kind, const Real* pre, Real weight, const Real* dh, Real* dpre, int64_t width) {
  Real dweight = 0;
  switch (kind) {
    case Activation::kSwiGlu:
      // d silu(g) / dg = s + g s (1 - s), with s = sigmoid(g)
#pragma omp simd reduction(+ : dweight)
      for (int64_t i = 0; i < width; ++i) {
        const Real gate = pre[i], up = pre[width + i];
        const Real s = sigmoid(gate);
        const Real silu = gate * s;
        const Real dproduct = dh[i] * weight;
        dweight += dh[i] * silu * up;
        dpre[i] = dproduct * up * (s + silu * (1 - s));
        dpre[width + i] = dproduct * silu;
      }
      break;
    case Activation::kReluSquared:
#pragma omp simd reduction(+ : dweight)
      for (int64_t i = 0; i < width; ++i) {
        const Real positive = relu(pre[i]);
        dweight += dh[i] * positive * positive;
        dpre[i] = dh[i] * weight * 2 * positive;
      }
      break;
    case Activation::kClampedSwiGlu:
      // d (g s) / dg = s + alpha g s (1 - s), with s = sigmoid(alpha g)
#pragma omp simd reduction(+ : dweight)
      for (int64_t i = 0; i < width; ++i) {
        const Real gate = clamped(pre[i]), up = clamped_both(pre[width + i]);
        const Real s = sigmoid(static_cast<Real>(kSwiGluAlpha) * gate), glu = gate * s;
        const Real dproduct = dh[i] * weight;
        dweight += dh[i] * (up + 1) * glu;
        const Real dgate = dproduct * (up + 1) * (s + static_cast<Real>(kSwiGluAlpha) * glu * (1 - s));
        const bool gate_stops = pre[i] > gate, up_stops = pre[width + i] > up || pre[width + i] < up;
        dpre[i] = gate_stops ? 0 : dgate;
        dpre[width + i] = up_stops ? 0 : dproduct * glu;
      }
      break;
  }
  return dweight;
}

// How many of `capacity` rows there are.
int64_t count_rows(Tensor num_rows, int64_t capacity) {
  if (!num_rows.defined()) return capacity;
  const int64_t count = *num_rows.data<int32_t>();
  NMOE_CHECK(count >= 0 && count <= capacity, "activation of {} rows, room for {}", count, capacity);
  return count;
}

}  // namespace

template <class Real>
void activation_forward(Context& ctx, const ActivationForward& args) {
  const Activation kind = args.kind;
  const Tensor pre = args.pre, row_weight = args.row_weight;
  ArenaScope scope(ctx.scratch);
  const Tensor h = args.h_columns.defined()
                       ? scope.allocate(DTypeOf<Real>::value, {pre.dim(0), args.h_columns.values.dim(1)})
                       : args.h;
  if (ctx.counting()) return;
  const int64_t num_rows = count_rows(args.num_rows, h.dim(0)), width = h.dim(1), pre_width = pre.dim(1);
  const Real* inputs = pre.data<Real>();
  const Real* weights = row_weight.data_or_null<Real>();
  Real* outputs = h.data<Real>();
  parallel_blocks(ctx, num_rows, task_rows(pre_width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const Real weight = weights != nullptr ? weights[row] : Real{1};
      forward_row(kind, inputs + row * pre_width, weight, outputs + row * width, width);
    }
  });
  write_codes<Real>(ctx, h, args.num_rows, args.h_codes);
  write_columns<Real>(ctx, h, args.offsets, args.h_columns);
  write_codes<Real>(ctx, pre, args.num_rows, args.pre_codes);
}

template <class Real>
void linear_activation_forward(Context& ctx, const LinearActivationForward& args) {
  linear_forward<Real>(ctx, {.x = args.x, .w = args.w, .y = args.pre, .addend = {}, .rounding = args.rounding});
  activation_forward<Real>(ctx, {.kind = args.kind,
                                 .pre = args.pre,
                                 .h = args.h,
                                 .h_codes = args.h_codes,
                                 .keeps_h = args.keeps_h,
                                 .pre_codes = args.pre_codes});
}

template <class Real>
void activation_backward(Context& ctx, const ActivationBackward& args) {
  const Activation kind = args.kind;
  const Tensor pre = args.pre, row_weight = args.row_weight, dh = args.dh, dpre = args.dpre,
               drow_weight = args.drow_weight;
  if (ctx.counting()) return;
  if (args.pre_codes.defined()) {
    widen_rows<Real>(ctx, {.codes = args.pre_codes, .x = pre, .num_rows = args.num_rows});
  }
  const int64_t num_rows = count_rows(args.num_rows, dh.dim(0)), width = dh.dim(1), pre_width = pre.dim(1);
  const Real* inputs = pre.data<Real>();
  const Real* weights = row_weight.data_or_null<Real>();
  const Real* dhs = dh.data<Real>();
  Real* dpres = dpre.data<Real>();
  Real* hs = args.h.data_or_null<Real>();
  Real* dweights = drow_weight.data_or_null<Real>();
  parallel_blocks(ctx, num_rows, task_rows(pre_width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const Real weight = weights != nullptr ? weights[row] : Real{1};
      if (hs != nullptr) forward_row(kind, inputs + row * pre_width, weight, hs + row * width, width);
      const Real dweight =
          backward_row(kind, inputs + row * pre_width, weight, dhs + row * width, dpres + row * pre_width, width);
      if (dweights != nullptr) dweights[row] = dweight;
    }
  });
  write_codes<Real>(ctx, dpre, args.num_rows, args.dpre_codes);
}

NMOE_CPU_INSTANTIATE(activation_forward, ActivationForward)
NMOE_CPU_INSTANTIATE(linear_activation_forward, LinearActivationForward)
NMOE_CPU_INSTANTIATE(activation_backward, ActivationBackward)

}  // namespace nmoe::cpu
