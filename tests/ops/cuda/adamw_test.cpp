#include "ops/cuda/optimizer_test.h"
#include "ops/moment_codes.h"

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
        cpu().adamw_steps(
            {.all = {with_settings({.w = w, .grad = grad, .m = m, .v = v, .grad_scale = scale, .rates = rates})}});
        gpu().adamw_steps({.all = {with_settings({.w = device_w.w,
                                                  .low = device_w.low,
                                                  .grad = up(grad),
                                                  .m = device_m,
                                                  .v = device_v,
                                                  .grad_scale = up(scale),
                                                  .rates = up(rates)})}});
      }
      EXPECT_TRUE(same_bits(master(device_w), w)) << dtype_name(dtype) << " " << size;
      EXPECT_TRUE(same_bits(down(device_m), m)) << size;
      EXPECT_TRUE(same_bits(down(device_v), v)) << size;
    }
  }
}

// More than a launch takes, of every kind of tensor, in any order.
TEST_F(CudaAdamW, ManyTensorsAtOnceAreEachAsIfAlone) {
  constexpr int kTensors = 600;
  const Tensor key = pool_.zeros(DType::kI64, {1}), scale = f64({0.7}), rates = f64({1e-2, 2, 3});
  *key.data<int64_t>() = 77;
  const Tensor device_key = up(key), device_scale = up(scale), device_rates = up(rates);
  AdamWSteps here, there;
  std::vector<Weight> weights;
  for (int i = 0; i < kTensors; ++i) {
    const DType dtype = kActDTypes[static_cast<size_t>(i) % std::size(kActDTypes)];
    const DType moments = i % 3 == 0 ? DType::kBF16 : DType::kF32;
    const int64_t size = i % 5 == 0 ? i : i % 5 * 1024 + (i % 7 == 0 ? 3 : 0);
    AdamWStep one = with_settings({.w = normal({size}), .grad = normal({size})});
    one.m = pool_.zeros(moments, {size}), one.v = pool_.zeros(moments, {size});
    one.grad_scale = scale, one.rates = rates, one.weight_decay = 0.01 * (i % 4);
    if (moments == DType::kBF16) one.random = {.key = key, .stream = static_cast<uint64_t>(i), .first = i % 2 * 8};
    here.all.push_back(one);
    const Weight& w = weights.emplace_back(weight(one.w, dtype));
    one.w = w.w, one.low = w.low, one.grad = up(one.grad), one.m = up(one.m), one.v = up(one.v);
    one.grad_scale = device_scale, one.rates = device_rates;
    if (moments == DType::kBF16) one.random.key = device_key;
    there.all.push_back(one);
  }
  for (int step = 0; step < 2; ++step) {
    cpu().adamw_steps(here);
    gpu().adamw_steps(there);
  }
  for (size_t i = 0; i < kTensors; ++i) {
    EXPECT_TRUE(same_bits(master(weights[i]), here.all[i].w)) << i;
    const auto wide = [&](Tensor x) {
      if (x.dtype() != DType::kBF16) return x;
      const Tensor y = pool_.zeros(DType::kF32, x.shape());
      widen(DType::kBF16, x.raw(), y.data<float>(), static_cast<size_t>(x.num_elements()));
      return y;
    };
    EXPECT_TRUE(same_bits(down(there.all[i].m), wide(here.all[i].m))) << i;
    EXPECT_TRUE(same_bits(down(there.all[i].v), wide(here.all[i].v))) << i;
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
        cpu().adamw_steps({.all = {args(w, {}, m, v, [](Tensor x) { return x; })}});
        gpu().adamw_steps(
            {.all = {args(device_w.w, device_w.low, device_m, device_v, [&](Tensor x) { return up(x); })}});
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

// Codes and scales to the bit, of ranges and of matrices, whose sizes eight or a block divide, or do not; and of many
// tensors, more than a launch takes.
TEST_F(CudaAdamW, MomentsInFp8AreThoseOfTheCpu) {
  struct Case {
    int64_t size, first;
    std::vector<double> matrices;
  };
  std::vector<Case> cases = {{0, 0, {}},
                             {1, 128, {}},
                             {70'000, 1 << 20, {}},
                             {1023, 256, {}},
                             {4 * 1024, 0, {}},
                             {3 * 24'576, 0, {5, 0, 2}},
                             {4 * 301, 0, {1, 3, 0, 2}},
                             {3 * 792, 0, {2, 0, 1}}};
  for (int64_t i = 0; i < 150; ++i) cases.push_back({8 * i, 0, {}});
  AdamWSteps here, there;
  std::vector<Weight> weights;
  const Tensor key = pool_.zeros(DType::kI64, {1}), scale = f64({0.7});
  for (const DType dtype : kActDTypes) {
    for (const Case& c : cases) {
      AdamWStep one = with_settings({.w = normal({c.size})});
      const Tensor matrices =
          c.matrices.empty() ? Tensor() : pool_.ints({static_cast<int64_t>(c.matrices.size())}, c.matrices);
      const int64_t count = matrices.defined() ? matrices.num_elements() : 1;
      for (Tensor* moment : {&one.m, &one.v}) *moment = pool_.zeros(DType::kU8, {c.size});
      for (Tensor* scales : {&one.m_scales, &one.v_scales}) {
        *scales = pool_.zeros(DType::kU8, {count * moments::num_blocks(c.size / count)});
      }
      one.grad_scale = scale;
      one.random = {.key = key, .stream = here.all.size() + 1, .first = c.first, .matrices = matrices};
      here.all.push_back(one);
      const Weight& w = weights.emplace_back(weight(one.w, dtype));
      one.w = w.w, one.low = w.low;
      for (Tensor* state : {&one.m, &one.v, &one.m_scales, &one.v_scales}) *state = up(*state);
      one.grad_scale = up(scale), one.random.matrices = up(matrices);
      there.all.push_back(one);
    }
  }
  for (int step = 1; step <= 3; ++step) {
    const Tensor rates = f64({1e-2, 1 / (1 - std::pow(0.9, step)), 1 / (1 - std::pow(0.95, step))});
    *key.data<int64_t>() = 0x123456789ABCDEF0 + step;
    const Tensor device_rates = up(rates), device_key = up(key);
    for (size_t i = 0; i < here.all.size(); ++i) {
      const Tensor grad = normal(here.all[i].w.shape());
      here.all[i].grad = grad, here.all[i].rates = rates;
      there.all[i].grad = up(grad), there.all[i].rates = device_rates, there.all[i].random.key = device_key;
    }
    cpu().adamw_steps(here);
    gpu().adamw_steps(there);
  }
  for (size_t i = 0; i < here.all.size(); ++i) {
    const AdamWStep &expected = here.all[i], &actual = there.all[i];
    EXPECT_TRUE(same_bits(master(weights[i]), expected.w)) << i;
    EXPECT_TRUE(same_bits(down(actual.m), expected.m)) << i;
    EXPECT_TRUE(same_bits(down(actual.v), expected.v)) << i;
    EXPECT_TRUE(same_bits(down(actual.m_scales), expected.m_scales)) << i;
    EXPECT_TRUE(same_bits(down(actual.v_scales), expected.v_scales)) << i;
  }
}

TEST_F(CudaAdamW, NothingChangesWithoutAFiniteScale) {
  for (const DType dtype : kActDTypes) {
    for (const double scale : {std::nan(""), HUGE_VAL}) {
      const Tensor w = normal({100}), m = normal({100}), v = pool_.full({100}, 1);
      const Weight device_w = weight(w, dtype);
      const Tensor device_m = up(m), device_v = up(v);
      gpu().adamw_steps({.all = {with_settings({.w = device_w.w,
                                                .low = device_w.low,
                                                .grad = up(normal({100})),
                                                .m = device_m,
                                                .v = device_v,
                                                .grad_scale = up(f64({scale})),
                                                .rates = up(f64({1, 1, 1}))})}});
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
  EXPECT_THROW(gpu().adamw_steps({.all = {args}}), CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
