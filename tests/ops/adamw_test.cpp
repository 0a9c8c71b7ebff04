#include <cmath>

#include "support/tensors.h"

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
      ops->adamw_step({.w = w,
                       .grad = gradients.back(),
                       .m = m,
                       .v = v,
                       .grad_scale = grad_scale,
                       .rates = adamw_rates(pool, kLr, kBeta1, kBeta2, step),
                       .beta1 = kBeta1,
                       .beta2 = kBeta2,
                       .eps = kEps,
                       .weight_decay = kDecay});
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
  ops->adamw_step({.w = w,
                   .grad = grad,
                   .m = m,
                   .v = v,
                   .grad_scale = pool.full({1}, 1.0),
                   .rates = adamw_rates(pool, 0.5, 0.9, 0.95, 1),
                   .eps = 1e-12});
  EXPECT_TRUE(near(w, {-0.5, 0.5, -0.5, 0}, 1e-9));
  EXPECT_TRUE(near(grad, {3, -0.01, 1e3, 0}, 0));
}

TEST(AdamW, DecaysWithoutGradient) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor w = pool.of({2}, {2, -4}), zero = pool.zeros({2}), m = pool.zeros({2}), v = pool.zeros({2});
  ops->adamw_step({.w = w,
                   .grad = zero,
                   .m = m,
                   .v = v,
                   .grad_scale = pool.full({1}, 1.0),
                   .rates = adamw_rates(pool, 0.1, 0.9, 0.95, 1),
                   .weight_decay = 0.5});
  EXPECT_TRUE(near(w, {2 * 0.95, -4 * 0.95}, 1e-15));
}

TEST(AdamW, AStepThatIsNotFiniteChangesNothing) {
  const auto ops = cpu_device();
  TensorPool pool;
  const Tensor w = pool.of({2}, {2, -4}), m = pool.of({2}, {1, 2}), v = pool.of({2}, {3, 4});
  ops->adamw_step({.w = w,
                   .grad = pool.of({2}, {NAN, 1}),
                   .m = m,
                   .v = v,
                   .grad_scale = pool.full({1}, NAN),
                   .rates = adamw_rates(pool, 0.1, 0.9, 0.95, 3),
                   .weight_decay = 0.5});
  EXPECT_TRUE(near(w, {2, -4}, 0));
  EXPECT_TRUE(near(m, {1, 2}, 0));
  EXPECT_TRUE(near(v, {3, 4}, 0));
}

}  // namespace
}  // namespace nmoe::test
