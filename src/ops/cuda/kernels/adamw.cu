// AdamW, memory-bound: a weight's 4 bytes, gradient, m and v are read once, all but the gradient written once.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/master_weight.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;

struct Constants {
  float beta1, beta2, gain1, gain2, eps, weight_decay;
};

// kValues: elements a thread takes at a time, 4 where all tensors are aligned for that.
template <class Weights, int kValues>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(Weights w, const float* grad, float* m, float* v, const double* grad_scale, const double* rates,
                 Constants constants, int64_t size) {
  if (!isfinite(*grad_scale)) return;
  const auto scale = static_cast<float>(*grad_scale), lr = static_cast<float>(rates[0]);
  const auto correction1 = static_cast<float>(rates[1]), correction2 = static_cast<float>(rates[2]);
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kValues;
  if (i >= size) return;
  float g[kValues], new_m[kValues], new_v[kValues], weight[kValues];
  load_values(grad + i, g);
  load_values(m + i, new_m);
  load_values(v + i, new_v);
  w.load(i, weight);
#pragma unroll
  for (int j = 0; j < kValues; ++j) {
    g[j] *= scale;
    new_m[j] = constants.beta1 * new_m[j] + constants.gain1 * g[j];
    new_v[j] = constants.beta2 * new_v[j] + constants.gain2 * g[j] * g[j];
    const float direction = new_m[j] * correction1 / (sqrtf(new_v[j] * correction2) + constants.eps);
    weight[j] -= lr * (direction + constants.weight_decay * weight[j]);
  }
  store_values(m + i, new_m);
  store_values(v + i, new_v);
  w.store(i, weight);
}

}  // namespace

void adamw_step(Context& ctx, const AdamWStep& args) {
  const int64_t size = args.w.num_elements();
  NMOE_CHECK(args.grad.num_elements() == size && args.m.num_elements() == size && args.v.num_elements() == size,
             "AdamW of w {}, grad {}, m {}, v {}", args.w.shape(), args.grad.shape(), args.m.shape(), args.v.shape());
  NMOE_CHECK(args.rates.num_elements() == 3, "AdamW with {} rates", args.rates.num_elements());
  const Constants constants{static_cast<float>(args.beta1),     static_cast<float>(args.beta2),
                            static_cast<float>(1 - args.beta1), static_cast<float>(1 - args.beta2),
                            static_cast<float>(args.eps),       static_cast<float>(args.weight_decay)};
  dispatch_weights(args.w, args.low, [&](auto weights) {
    if (ctx.counting() || size == 0) return;
    using Weights = decltype(weights);
    const bool vectors = size % kVector == 0 && weights.aligned() && aligned16(args.grad.raw()) &&
                         aligned16(args.m.raw()) && aligned16(args.v.raw());
    const auto kernel = vectors ? adamw_kernel<Weights, kVector> : adamw_kernel<Weights, 1>;
    kernel<<<grid_size(ceil_div(size, kThreads * (vectors ? kVector : 1))), kThreads, 0, ctx.stream>>>(
        weights, args.grad.data<float>(), args.m.data<float>(), args.v.data<float>(), args.grad_scale.data<double>(),
        args.rates.data<double>(), constants, size);
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace nmoe::cuda
