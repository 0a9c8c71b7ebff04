#include "ops/cuda/optimizer_test.h"

namespace nmoe::test {
namespace {

using CudaAdamW = CudaOptimizerTest;

AdamWStep with_settings(AdamWStep args) {
  args.beta1 = 0.9;
  args.beta2 = 0.95;
  args.eps = 1e-8;
  args.weight_decay = 0.1;
  return args;
}

TEST_F(CudaAdamW, StepsAreThoseOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{1023}, int64_t{70'001}}) {
      const Tensor w = normal({size}), m = pool_.zeros({size}), v = pool_.zeros({size});
      const Weight device_w = weight(w, dtype);
      const Tensor device_m = up(m), device_v = up(v);
      for (int step = 1; step <= 3; ++step) {
        const Tensor grad = normal({size}), scale = f64({0.7});
        const Tensor rates = f64({1e-2, 1 / (1 - std::pow(0.9, step)), 1 / (1 - std::pow(0.95, step))});
        cpu().adamw_step(with_settings({.w = w, .grad = grad, .m = m, .v = v, .grad_scale = scale, .rates = rates}));
        gpu().adamw_step(with_settings({.w = device_w.w,
                                        .low = device_w.low,
                                        .grad = up(grad),
                                        .m = device_m,
                                        .v = device_v,
                                        .grad_scale = up(scale),
                                        .rates = up(rates)}));
      }
      // A few roundings of fp32, relative to a thousandth of the largest: halves of a master lose nothing.
      EXPECT_TRUE(near(master(device_w), w, 1e-4)) << dtype_name(dtype) << " " << size;
      EXPECT_TRUE(near(down(device_m), m, 1e-4)) << size;
      EXPECT_TRUE(near(down(device_v), v, 1e-4)) << size;
    }
  }
}

TEST_F(CudaAdamW, NothingChangesWithoutAFiniteScale) {
  for (const DType dtype : kActDTypes) {
    for (const double scale : {std::nan(""), HUGE_VAL}) {
      const Tensor w = normal({100}), m = normal({100}), v = pool_.full({100}, 1);
      const Weight device_w = weight(w, dtype);
      const Tensor device_m = up(m), device_v = up(v);
      gpu().adamw_step(with_settings({.w = device_w.w,
                                      .low = device_w.low,
                                      .grad = up(normal({100})),
                                      .m = device_m,
                                      .v = device_v,
                                      .grad_scale = up(f64({scale})),
                                      .rates = up(f64({1, 1, 1}))}));
      EXPECT_TRUE(same_bits(master(device_w), w));
      EXPECT_TRUE(same_bits(down(device_m), m));
      EXPECT_TRUE(same_bits(down(device_v), v));
    }
  }
}

TEST_F(CudaAdamW, ABfloat16WeightNeedsItsLowPart) {
  const Tensor w = tensors_.allocate(DType::kBF16, {4}), other = up(pool_.zeros({4}));
  AdamWStep args{.w = w, .grad = other, .m = other, .v = other};
  args.grad_scale = up(f64({1}));
  args.rates = up(f64({1, 1, 1}));
  EXPECT_THROW(gpu().adamw_step(args), CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
