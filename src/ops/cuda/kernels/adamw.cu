// AdamW, memory-bound: a weight's 4 bytes, gradient, m and v are read once, all but the gradient written once.
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/master_weight.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kThreadElements = 4;

struct Constants {
  float beta1, beta2, gain1, gain2, eps, weight_decay;
};

template <class Weights>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(Weights w, const float* grad, float* m, float* v, const double* grad_scale, const double* rates,
                 Constants constants, int64_t size) {
  if (!isfinite(*grad_scale)) return;
  const auto scale = static_cast<float>(*grad_scale), lr = static_cast<float>(rates[0]);
  const auto correction1 = static_cast<float>(rates[1]), correction2 = static_cast<float>(rates[2]);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kThreads * kThreadElements + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kThreadElements; ++j) {
    const int64_t i = begin + j * kThreads;
    if (i >= size) return;
    const float g = grad[i] * scale, weight = w.load(i);
    const float new_m = constants.beta1 * m[i] + constants.gain1 * g;
    const float new_v = constants.beta2 * v[i] + constants.gain2 * g * g;
    const float direction = new_m * correction1 / (sqrtf(new_v * correction2) + constants.eps);
    m[i] = new_m;
    v[i] = new_v;
    w.store(i, weight - lr * (direction + constants.weight_decay * weight));
  }
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
    adamw_kernel<<<grid_size(ceil_div(size, kThreads * kThreadElements)), kThreads, 0, ctx.stream>>>(
        weights, args.grad.data<float>(), args.m.data<float>(), args.v.data<float>(), args.grad_scale.data<double>(),
        args.rates.data<double>(), constants, size);
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace nmoe::cuda
