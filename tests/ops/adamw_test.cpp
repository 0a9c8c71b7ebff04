#include <bit>
#include <cmath>
#include <numeric>

#include "ops/moment_rounding.h"
#include "support/tensors.h"
#include "tensor/convert.h"

namespace nmoe::test {
namespace {

// What a step of this number reads.
Tensor adamw_rates(TensorPool& pool, double lr, double beta1, double beta2, int step) {
  const Tensor rates = pool.zeros(DType::kF64, {3});
  set(rates, 0, lr);
  set(rates, 1, 1 / (1 - std::pow(beta1, step)));
  set(rates, 2, 1 / (1 - std::pow(beta2, step)));
  return rates;
}

// A few steps over one parameter tensor, with new gradients every step.
struct AdamWRun {
  static constexpr int kSteps = 6;
  static constexpr double kLr = 1e-2, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1, kGradScale = 0.25;

  AdamWRun(DType real, int num_threads, int64_t size) : pool(real) {
    const auto ops = cpu_device(real, num_threads);
    w = pool.normal({size});
    initial = pool.clone(w);
    m = pool.zeros({size});
    v = pool.zeros({size});
    const Tensor grad_scale = pool.zeros(DType::kF64, {1});
    set(grad_scale, 0, kGradScale);
    for (int step = 1; step <= kSteps; ++step) {
      gradients.push_back(pool.normal({size}, 2.0));
      ops->adamw_steps({.all = {{.w = w,
                                 .grad = gradients.back(),
                                 .m = m,
                                 .v = v,
                                 .grad_scale = grad_scale,
                                 .rates = adamw_rates(pool, kLr, kBeta1, kBeta2, step),
                                 .beta1 = kBeta1,
                                 .beta2 = kBeta2,
                                 .eps = kEps,
                                 .weight_decay = kDecay}}});
    }
  }
  TensorPool pool;
  Tensor w, initial, m, v;
  std::vector<Tensor> gradients;
};

// Algorithm 2 of arXiv 1711.05101, element by element, its moments as explicit weighted sums of all
// gradients.
double reference_weight(const AdamWRun& run, int64_t i) {
  double w = get(run.initial, i);
  for (int step = 1; step <= AdamWRun::kSteps; ++step) {
    double m = 0, v = 0;
    for (int past = 1; past <= step; ++past) {
      const double g = AdamWRun::kGradScale * get(run.gradients[static_cast<size_t>(past - 1)], i);
      m += (1 - AdamWRun::kBeta1) * std::pow(AdamWRun::kBeta1, step - past) * g;
      v += (1 - AdamWRun::kBeta2) * std::pow(AdamWRun::kBeta2, step - past) * g * g;
    }
    const double m_hat = m / (1 - std::pow(AdamWRun::kBeta1, step));
    const double v_hat = v / (1 - std::pow(AdamWRun::kBeta2, step));
    w -= AdamWRun::kLr * (m_hat / (std::sqrt(v_hat) + AdamWRun::kEps) + AdamWRun::kDecay * w);
  }
  return w;
}

TEST(AdamW, MatchesTheDefinitionOverSeveralSteps) {
  for (const auto& [real, tolerance] : {std::pair{DType::kF64, 1e-12}, std::pair{DType::kF32, 1e-5}}) {
    const AdamWRun run(real, 2, 1013);
    std::vector<double> expected;
    for (int64_t i = 0; i < 1013; ++i) expected.push_back(reference_weight(run, i));
    EXPECT_TRUE(near(run.w, expected, tolerance)) << dtype_name(real);
  }
}

TEST(AdamW, BitsDoNotDependOnThreads) {
  const AdamWRun one(DType::kF32, 1, 100'003), three(DType::kF32, 3, 100'003);
  EXPECT_TRUE(same_bits(one.w, three.w));
  EXPECT_TRUE(same_bits(one.m, three.m));
  EXPECT_TRUE(same_bits(one.v, three.v));
}

TEST(AdamW, FirstStepMovesEveryWeightByTheRate) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor w = pool.zeros({4}), grad = pool.of({4}, {3, -0.01, 1e3, 0}), m = pool.zeros({4}), v = pool.zeros({4});
  ops->adamw_steps({.all = {{.w = w,
                             .grad = grad,
                             .m = m,
                             .v = v,
                             .grad_scale = pool.full({1}, 1.0),
                             .rates = adamw_rates(pool, 0.5, 0.9, 0.95, 1),
                             .eps = 1e-12}}});
  EXPECT_TRUE(near(w, {-0.5, 0.5, -0.5, 0}, 1e-9));
  EXPECT_TRUE(near(grad, {3, -0.01, 1e3, 0}, 0));
}

TEST(AdamW, DecaysWithoutGradient) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor w = pool.of({2}, {2, -4}), zero = pool.zeros({2}), m = pool.zeros({2}), v = pool.zeros({2});
  ops->adamw_steps({.all = {{.w = w,
                             .grad = zero,
                             .m = m,
                             .v = v,
                             .grad_scale = pool.full({1}, 1.0),
                             .rates = adamw_rates(pool, 0.1, 0.9, 0.95, 1),
                             .weight_decay = 0.5}}});
  EXPECT_TRUE(near(w, {2 * 0.95, -4 * 0.95}, 1e-15));
}

TEST(AdamW, AStepThatIsNotFiniteChangesNothing) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor w = pool.of({2}, {2, -4}), m = pool.of({2}, {1, 2}), v = pool.of({2}, {3, 4});
  ops->adamw_steps({.all = {{.w = w,
                             .grad = pool.of({2}, {NAN, 1}),
                             .m = m,
                             .v = v,
                             .grad_scale = pool.full({1}, NAN),
                             .rates = adamw_rates(pool, 0.1, 0.9, 0.95, 3),
                             .weight_decay = 0.5}}});
  EXPECT_TRUE(near(w, {2, -4}, 0));
  EXPECT_TRUE(near(m, {1, 2}, 0));
  EXPECT_TRUE(near(v, {3, 4}, 0));
}

// --- moments in BF16

std::vector<uint16_t> bits_of(Tensor x) {
  const auto* const first = static_cast<const uint16_t*>(x.raw());
  return {first, first + x.num_elements()};
}
double mean_of(Tensor x) {
  double sum = 0;
  for (const uint16_t bits : bits_of(x)) sum += bf16_to_float(bits);
  return sum / static_cast<double>(x.num_elements());
}

// One parameter tensor with moments in BF16, of which a part may be here: gradients are of whole tensors.
struct RoundedRun {
  RoundedRun(int64_t first, int64_t last, int num_threads = 2)
      : begin(first), end(last), ops(cpu_device(DType::kF32, num_threads)) {}

  void step(Tensor grads, int number, double beta2 = 0.95) {
    set(grad_scale, 0, 1.0);
    *key.data<int64_t>() = number;
    ops->adamw_steps({.all = {{.w = w,
                               .grad = grads.rows(begin, end),
                               .m = m,
                               .v = v,
                               .grad_scale = grad_scale,
                               .rates = adamw_rates(pool, 1e-3, 0.9, beta2, number),
                               .random = {.key = key, .stream = 17, .first = begin},
                               .beta2 = beta2}}});
  }
  int64_t begin, end;
  ReadyDevice ops;
  TensorPool pool{DType::kF32};
  Tensor w = pool.zeros({end - begin});
  Tensor m = pool.zeros(DType::kBF16, {end - begin}), v = pool.zeros(DType::kBF16, {end - begin});
  Tensor key = pool.zeros(DType::kI64, {1}), grad_scale = pool.zeros(DType::kF64, {1});
};

TEST(RoundedMoments, AreAtEitherNeighbourAndRightInTheMean) {
  constexpr float kLower = 1.0F, kUpper = 1.0F + 0x1p-7F;
  for (const float way : {0.0F, 0x1p-16F, 0.25F, 0.5F, 1.0F - 0x1p-16F}) {
    for (const float sign : {1.0F, -1.0F}) {
      const float x = sign * (kLower + way * (kUpper - kLower));
      int64_t upper = 0;
      for (uint32_t random = 0; random < 0x10000U; ++random) {
        const float rounded = bf16_to_float(static_cast<uint16_t>(moments::to_bf16(x, random) >> 16));
        ASSERT_TRUE(rounded == sign * kLower || rounded == sign * kUpper) << x << " " << rounded;
        upper += rounded == sign * kUpper ? 1 : 0;
        ASSERT_EQ(moments::second_bits(moments::second_bits(random)), random);
      }
      EXPECT_EQ(static_cast<float>(upper), way * 0x1p16F) << x;
    }
  }
  for (const uint32_t random : {0U, 1U, 0xFFFFU}) {
    EXPECT_EQ(moments::to_bf16(INFINITY, random) >> 16, 0x7F80U);
    EXPECT_EQ(moments::to_bf16(-INFINITY, random) >> 16, 0xFF80U);
    EXPECT_TRUE(std::isnan(bf16_to_float(static_cast<uint16_t>(moments::to_bf16(NAN, random) >> 16))));
    EXPECT_EQ(moments::to_bf16(0.0F, random) >> 16, 0U);
  }
}

// A gradient that falls by a factor: to nearest, v would stand still above its square for ever.
TEST(RoundedMoments, FollowWhatTheyWouldBeInFp32) {
  constexpr int64_t kSize = 40'000;
  constexpr double kBeta2 = 0.999;
  RoundedRun run(0, kSize);
  TensorPool pool(DType::kF32);
  double m = 0, v = 0;
  for (int step = 1; step <= 600; ++step) {
    const double g = step <= 200 ? 1.0 : 0.5;
    run.step(pool.full({kSize}, g), step, kBeta2);
    m = 0.9 * m + 0.1 * g;
    v = kBeta2 * v + (1 - kBeta2) * g * g;
    if (step % 200 != 0) continue;
    // One element's is off by some 5 % (ops/adamw_math.h), the mean over 40,000 by a 200th of that; four times as much.
    EXPECT_NEAR(mean_of(run.m), m, 1e-3 * m) << step;
    EXPECT_NEAR(mean_of(run.v), v, 1e-3 * v) << step;
    double squares = 0;
    for (const uint16_t bits : bits_of(run.v)) squares += std::pow(bf16_to_float(bits) / v - 1, 2);
    EXPECT_LT(std::sqrt(squares / kSize), 0.08) << step;
    EXPECT_GT(std::sqrt(squares / kSize), 0.01) << step;
  }
}

// However a tensor is cut, and in whichever slots its matrices are.
TEST(RoundedMoments, BitsBelongToElements) {
  constexpr int64_t kMatrices = 5, kMatrix = 203, kSize = kMatrices * kMatrix;
  TensorPool pool(DType::kF32);
  std::vector<Tensor> grads;
  for (int step = 0; step < 3; ++step) grads.push_back(pool.normal({kSize}));
  const auto drive = [&](RoundedRun& run) {
    for (int step = 0; step < 3; ++step) run.step(grads[static_cast<size_t>(step)], step + 1);
  };
  RoundedRun whole(0, kSize), one_thread(0, kSize, 1);
  drive(whole);
  drive(one_thread);
  EXPECT_EQ(bits_of(whole.m), bits_of(one_thread.m));
  EXPECT_EQ(bits_of(whole.v), bits_of(one_thread.v));
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 301}, {301, 304}, {304, kSize}}) {
    RoundedRun part(begin, end);
    drive(part);
    EXPECT_EQ(bits_of(part.m), bits_of(whole.m.rows(begin, end))) << begin;
    EXPECT_EQ(bits_of(part.v), bits_of(whole.v.rows(begin, end))) << begin;
    EXPECT_TRUE(same_bits(part.w, whole.w.rows(begin, end))) << begin;
  }
  // Other keys, other bits.
  RoundedRun other(0, kSize);
  for (int step = 0; step < 3; ++step) other.step(grads[static_cast<size_t>(step)], step + 2);
  EXPECT_NE(bits_of(other.v), bits_of(whole.v));

  const std::vector<double> here = {3, 0, 4};  // matrices in three slots
  const Tensor matrices = pool.ints({3}, here), key = pool.zeros(DType::kI64, {1}),
               scale = pool.zeros(DType::kF64, {1});
  set(scale, 0, 1.0);
  const Tensor w = pool.zeros({3 * kMatrix}), m = pool.zeros(DType::kBF16, {3 * kMatrix}),
               v = pool.zeros(DType::kBF16, {3 * kMatrix}), grad = pool.zeros({3 * kMatrix});
  const auto each_slot = [&](const auto& visit) {
    for (size_t slot = 0; slot < here.size(); ++slot) {
      const auto from = static_cast<int64_t>(here[slot]) * kMatrix, to = static_cast<int64_t>(slot) * kMatrix;
      visit(from, to);
    }
  };
  for (int step = 1; step <= 3; ++step) {
    each_slot([&](int64_t from, int64_t to) {
      std::memcpy(grad.data<float>() + to, grads[static_cast<size_t>(step - 1)].data<float>() + from,
                  kMatrix * sizeof(float));
    });
    *key.data<int64_t>() = step;
    cpu_device(DType::kF32, 2)
        ->adamw_steps({.all = {{.w = w,
                                .grad = grad,
                                .m = m,
                                .v = v,
                                .grad_scale = scale,
                                .rates = adamw_rates(pool, 1e-3, 0.9, 0.95, step),
                                .random = {.key = key, .stream = 17, .matrices = matrices}}}});
  }
  each_slot([&](int64_t from, int64_t to) {
    EXPECT_EQ(bits_of(v.rows(to, to + kMatrix)), bits_of(whole.v.rows(from, from + kMatrix))) << from;
    EXPECT_EQ(bits_of(m.rows(to, to + kMatrix)), bits_of(whole.m.rows(from, from + kMatrix))) << from;
  });
}

TEST(RoundedMoments, WantRandomBits) {
  TensorPool pool(DType::kF32);
  const Tensor w = pool.zeros({4}), scale = pool.zeros(DType::kF64, {1});
  AdamWStep args{.w = w, .grad = w, .m = pool.zeros(DType::kBF16, {4}), .v = pool.zeros(DType::kBF16, {4})};
  args.grad_scale = scale;
  args.rates = adamw_rates(pool, 0.1, 0.9, 0.95, 1);
  EXPECT_THROW(cpu_device(DType::kF32)->adamw_steps({.all = {args}}), CheckFailure);
  args.random.key = pool.zeros(DType::kI64, {1});
  cpu_device(DType::kF32)->adamw_steps({.all = {args}});
  args.v = w;
  EXPECT_THROW(cpu_device(DType::kF32)->adamw_steps({.all = {args}}), CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
