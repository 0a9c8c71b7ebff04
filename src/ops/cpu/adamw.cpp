#include <cmath>

#include "ops/cpu/operations.h"

namespace nmoe::cpu {

template <class Real>
void adamw_step(Context& ctx, const AdamWStep& args) {
  const int64_t size = args.w.num_elements();
  NMOE_CHECK(args.grad.num_elements() == size && args.m.num_elements() == size && args.v.num_elements() == size,
             "AdamW of w {}, grad {}, m {}, v {}", args.w.shape(), args.grad.shape(), args.m.shape(), args.v.shape());
  NMOE_CHECK(args.rates.num_elements() == 3, "AdamW with {} rates", args.rates.num_elements());
  if (ctx.counting() || !std::isfinite(*args.grad_scale.data<double>())) return;
  const double* rates = args.rates.data<double>();
  const auto beta1 = static_cast<Real>(args.beta1), beta2 = static_cast<Real>(args.beta2);
  const auto gain1 = static_cast<Real>(1 - args.beta1), gain2 = static_cast<Real>(1 - args.beta2);
  const auto correction1 = static_cast<Real>(rates[1]), correction2 = static_cast<Real>(rates[2]);
  const auto grad_scale = static_cast<Real>(*args.grad_scale.data<double>());
  const auto lr = static_cast<Real>(rates[0]), eps = static_cast<Real>(args.eps);
  const auto decay = static_cast<Real>(args.weight_decay);
  Real* w = args.w.data<Real>();
  const Real* grad = args.grad.data<Real>();
  Real* m = args.m.data<Real>();
  Real* v = args.v.data<Real>();
  parallel_blocks(ctx, size, kTaskElements, [&](int64_t begin, int64_t end, int) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const Real g = grad[i] * grad_scale;
      m[i] = beta1 * m[i] + gain1 * g;
      v[i] = beta2 * v[i] + gain2 * g * g;
      const Real direction = m[i] * correction1 / (std::sqrt(v[i] * correction2) + eps);
      w[i] -= lr * (direction + decay * w[i]);
    }
  });
}

NMOE_CPU_INSTANTIATE(adamw_step, AdamWStep)

}  // namespace nmoe::cpu
