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
      EXPECT_TRUE(same_bits(master(device_w), w)) << dtype_name(dtype) << " " << size;
      EXPECT_TRUE(same_bits(down(device_m), m)) << size;
      EXPECT_TRUE(same_bits(down(device_v), v)) << size;
    }
  }
}

// Sizes and beginnings that 16 bytes divide, and others; matrices in any order, or one range.
TEST_F(CudaAdamW, MomentsInBf16AreThoseOfTheCpu) {
  struct Case {
    int64_t size, first;
    std::vector<double> matrices;
  };
  for (const Case& c : {Case{0, 0, {}}, Case{1, 5, {}}, Case{70'000, 1 << 20, {}}, Case{70'000, 3, {}},
                        Case{1023, 8, {}}, Case{3 * 24'576, 0, {5, 0, 2}}, Case{4 * 301, 0, {1, 3, 0, 2}}}) {
    for (const DType dtype : kActDTypes) {
      const Tensor w = normal({c.size}), m = pool_.zeros(DType::kBF16, {c.size}),
                   v = pool_.zeros(DType::kBF16, {c.size});
      const Weight device_w = weight(w, dtype);
      const Tensor device_m = up(m), device_v = up(v), key = pool_.zeros(DType::kI64, {1});
      const Tensor matrices =
          c.matrices.empty() ? Tensor() : pool_.ints({static_cast<int64_t>(c.matrices.size())}, c.matrices);
      for (int step = 1; step <= 3; ++step) {
        const Tensor grad = normal({c.size}), scale = f64({0.7});
        const Tensor rates = f64({1e-2, 1 / (1 - std::pow(0.9, step)), 1 / (1 - std::pow(0.95, step))});
        *key.data<int64_t>() = 0x123456789ABCDEF0 + step;
        const auto args = [&](Tensor w_of, Tensor low, Tensor m_of, Tensor v_of, auto place) {
          AdamWStep of = with_settings({.w = w_of, .low = low, .grad = place(grad), .m = m_of, .v = v_of});
          of.grad_scale = place(scale);
          of.rates = place(rates);
          of.random = {.key = place(key), .stream = 0xFEDCBA9876543210, .first = c.first, .matrices = place(matrices)};
          return of;
        };
        cpu().adamw_step(args(w, {}, m, v, [](Tensor x) { return x; }));
        gpu().adamw_step(args(device_w.w, device_w.low, device_m, device_v, [&](Tensor x) { return up(x); }));
      }
      const auto widened = [&](Tensor x) {
        const Tensor wide = pool_.zeros(DType::kF32, x.shape());
        widen(DType::kBF16, x.raw(), wide.data<float>(), static_cast<size_t>(x.num_elements()));
        return wide;
      };
      EXPECT_TRUE(same_bits(master(device_w), w)) << dtype_name(dtype) << " " << c.size;
      EXPECT_TRUE(same_bits(down(device_m), widened(m))) << c.size;
      EXPECT_TRUE(same_bits(down(device_v), widened(v))) << c.size;
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
