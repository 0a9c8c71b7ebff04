#include <cmath>
#include <limits>

#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

int64_t pre_width(Activation kind, int64_t width) { return activation_parts(kind) * width; }

// One element of h, straight from the definition.
double reference(Activation kind, Tensor pre, int64_t row, int64_t column, double weight) {
  const int64_t width = pre.dim(1);
  const double first = get(pre, row * width + column);
  if (kind == Activation::kReluSquared) return std::pow(std::max(first, 0.0), 2) * weight;
  if (kind == Activation::kClampedSwiGlu) {
    const double gate = std::min(first, 7.0), up = std::clamp(get(pre, row * width + width / 2 + column), -7.0, 7.0);
    return (up + 1) * gate / (1 + std::exp(-1.702 * gate)) * weight;
  }
  return first / (1 + std::exp(-first)) * get(pre, row * width + width / 2 + column) * weight;
}

struct Case {
  Activation kind;
  bool weighted;
};

class ActivationTest : public ::testing::TestWithParam<Case> {
 protected:
  // All inputs and outputs of one forward and backward.
  struct ActivationRun {
    ActivationRun(DType real, int num_threads, int64_t num_rows, int64_t width, Case c) : pool(real) {
      ops = cpu_device(real, num_threads);
      pre = pool.normal({num_rows, pre_width(c.kind, width)}, 2.0);
      h = pool.zeros({num_rows, width});
      dh = pool.normal({num_rows, width});
      dpre = pool.zeros(pre.shape());
      if (c.weighted) {
        row_weight = pool.normal({num_rows}, 0.3, 1.0);
        drow_weight = pool.zeros({num_rows});
      }
      ops->activation_forward({c.kind, pre, row_weight, h});
      ops->activation_backward({c.kind, pre, row_weight, dh, dpre, drow_weight});
    }
    TensorPool pool;
    ReadyDevice ops;
    Tensor pre, row_weight, h, dh, dpre, drow_weight;
  };
};

INSTANTIATE_TEST_SUITE_P(Kinds, ActivationTest,
                         ::testing::Values(Case{Activation::kSwiGlu, false}, Case{Activation::kSwiGlu, true},
                                           Case{Activation::kReluSquared, false}, Case{Activation::kReluSquared, true},
                                           Case{Activation::kClampedSwiGlu, false},
                                           Case{Activation::kClampedSwiGlu, true}));

TEST_P(ActivationTest, ForwardMatchesTheDefinition) {
  const ActivationRun run(DType::kF64, 2, 5, 19, GetParam());
  std::vector<double> expected;
  for (int64_t row = 0; row < 5; ++row) {
    const double weight = GetParam().weighted ? get(run.row_weight, row) : 1.0;
    for (int64_t i = 0; i < 19; ++i) expected.push_back(reference(GetParam().kind, run.pre, row, i, weight));
  }
  EXPECT_TRUE(near(run.h, expected, 1e-13));
}

TEST_P(ActivationTest, BackwardMatchesFiniteDifferences) {
  for (const Shape shape : {Shape{1, 1}, Shape{3, 7}, Shape{2, 16}}) {
    const ActivationRun run(DType::kF64, 2, shape[0], shape[1], GetParam());
    const auto loss = [&] {
      run.ops->activation_forward({GetParam().kind, run.pre, run.row_weight, run.h});
      return dot(run.h, run.dh);
    };
    EXPECT_TRUE(gradient_matches(loss, run.pre, run.dpre));
    if (GetParam().weighted) {
      EXPECT_TRUE(gradient_matches(loss, run.row_weight, run.drow_weight));
    }
  }
}

// Gates from above, and what they gate on both sides.
TEST(ClampedSwiGlu, NothingMovesBeyondTheLimits) {
  TensorPool pool(DType::kF64);
  const auto ops = cpu_device();
  const Tensor pre = pool.of({1, 10}, {9, -9, 1, 1, 6, 1, 1, 9, -9, -6}), h = pool.zeros({1, 5});
  const Tensor dh = pool.of({1, 5}, {1, 1, 1, 1, 1}), dpre = pool.zeros(pre.shape());
  ops->activation_forward({Activation::kClampedSwiGlu, pre, {}, h});
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(get(h, i), reference(Activation::kClampedSwiGlu, pre, 0, i, 1.0), 1e-13);
  }
  ops->activation_backward({Activation::kClampedSwiGlu, pre, {}, dh, dpre, {}});
  const auto loss = [&] {
    ops->activation_forward({Activation::kClampedSwiGlu, pre, {}, h});
    return dot(h, dh);
  };
  EXPECT_TRUE(gradient_matches(loss, pre, dpre));
  for (const int64_t stopped : {0, 7, 8}) EXPECT_EQ(get(dpre, stopped), 0.0);
  for (const int64_t moves : {1, 2, 3, 4, 5, 6, 9}) EXPECT_NE(get(dpre, moves), 0.0);
}

TEST_P(ActivationTest, BackwardMayOverwriteItsInput) {
  for (const DType real : {DType::kF32, DType::kF64}) {
    const ActivationRun run(real, 2, 7, 37, GetParam());
    run.ops->activation_backward({GetParam().kind, run.pre, run.row_weight, run.dh, run.pre, run.drow_weight});
    EXPECT_TRUE(same_bits(run.pre, run.dpre));
  }
}

TEST_P(ActivationTest, BackwardMakesWhatForwardMade) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    ActivationRun run(dtype, 2, 9, 13, GetParam());
    const Tensor h = run.pool.zeros(run.h.shape()), pre = run.pool.zeros(run.pre.shape());
    run.ops->copy({.source = run.pre, .destination = pre});
    run.ops->activation_backward({.kind = GetParam().kind,
                                  .pre = pre,
                                  .row_weight = run.row_weight,
                                  .dh = run.dh,
                                  .dpre = pre,
                                  .drow_weight = run.drow_weight,
                                  .h = h});
    EXPECT_TRUE(same_bits(h, run.h));
    EXPECT_TRUE(same_bits(pre, run.dpre));
  }
}

TEST_P(ActivationTest, FloatAgreesWithDouble) {
  const ActivationRun single(DType::kF32, 2, 33, 65, GetParam()), exact(DType::kF64, 2, 33, 65, GetParam());
  const bool cancels = GetParam().kind == Activation::kClampedSwiGlu;  // up + 1, where up is near -1
  EXPECT_TRUE(near(single.h, exact.h, cancels ? 2e-5 : 2e-6));
  EXPECT_TRUE(near(single.dpre, exact.dpre, 2e-5));  // 1 - sigmoid cancels
  if (GetParam().weighted) {
    EXPECT_TRUE(near(single.drow_weight, exact.drow_weight, 2e-5));
  }
}

TEST_P(ActivationTest, BitsDoNotDependOnThreads) {
  const ActivationRun one(DType::kF32, 1, 700, 129, GetParam()), three(DType::kF32, 3, 700, 129, GetParam());
  EXPECT_TRUE(same_bits(one.h, three.h));
  EXPECT_TRUE(same_bits(one.dpre, three.dpre));
  if (GetParam().weighted) {
    EXPECT_TRUE(same_bits(one.drow_weight, three.drow_weight));
  }
}

TEST_P(ActivationTest, AcceptsNoRows) {
  EXPECT_EQ(ActivationRun(DType::kF32, 2, 0, 8, GetParam()).h.num_elements(), 0);
}

TEST(Activation, SwiGluSaturatesWithoutNan) {
  for (const DType real : {DType::kF32, DType::kF64}) {
    const auto ops = cpu_device(real);
    TensorPool pool(real);
    const Tensor pre = pool.of({1, 8}, {80, -80, 1000, -1000, /* up */ 2, 2, 2, 2});
    const Tensor h = pool.zeros({1, 4}), dh = pool.full({1, 4}, 1.0), dpre = pool.zeros({1, 8});
    ops->activation_forward({Activation::kSwiGlu, pre, {}, h});
    EXPECT_TRUE(near(h, {160, 0, 2000, 0}, 1e-6));
    ops->activation_backward({Activation::kSwiGlu, pre, {}, dh, dpre, {}});
    EXPECT_TRUE(near(dpre, {2, 0, 2, 0, 80, 0, 1000, 0}, 1e-6));
  }
}

TEST(Activation, LetsNanThrough) {
  const auto ops = cpu_device(DType::kF32);
  TensorPool pool(DType::kF32);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor h = pool.zeros({1, 1});
  ops->activation_forward({Activation::kReluSquared, pool.of({1, 1}, {nan}), {}, h});
  EXPECT_TRUE(std::isnan(get(h, 0)));
  set(h, 0, 0);
  ops->activation_forward({Activation::kClampedSwiGlu, pool.of({1, 2}, {nan, 1}), {}, h});
  EXPECT_TRUE(std::isnan(get(h, 0)));
  ops->activation_forward({Activation::kClampedSwiGlu, pool.of({1, 2}, {1, nan}), {}, h});
  EXPECT_TRUE(std::isnan(get(h, 0)));
  ops->activation_forward({Activation::kSwiGlu, pool.of({1, 2}, {nan, 1}), {}, h});
  EXPECT_TRUE(std::isnan(get(h, 0)));
}

TEST(Activation, RefusesShapesThatDisagree) {
  const auto ops = cpu_device(DType::kF32);
  TensorPool pool(DType::kF32);
  EXPECT_THROW(ops->activation_forward({Activation::kSwiGlu, pool.zeros({2, 4}), {}, pool.zeros({2, 4})}),
               CheckFailure);
  EXPECT_THROW(
      ops->activation_forward({Activation::kReluSquared, pool.zeros({2, 4}), pool.zeros({3}), pool.zeros({2, 4})}),
      CheckFailure);
}

TEST(Activation, RefusesToLeaveNothingEvenWhenCounting) {
  TensorPool pool(DType::kF32);
  const auto counting = make_device({.num_threads = 1});
  const ReadyDevice device = cpu_device(DType::kF32);
  for (Ops* ops : {&*device, &counting->ops()}) {
    EXPECT_THROW(ops->activation_forward({.pre = pool.zeros({2, 4}), .h = pool.zeros({2, 2}), .keeps_h = false}),
                 CheckFailure);
  }
}

// Rows are a capacity: those that are not there are neither read nor written.
TEST(Activation, LeavesRowsBeyondTheirNumberAlone) {
  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    TensorPool pool(DType::kF32);
    const auto ops = cpu_device(DType::kF32);
    const int64_t width = kind == Activation::kSwiGlu ? 6 : 3;
    const Tensor pre = pool.normal({5, width}), weight = pool.normal({5}), dh = pool.normal({5, 3});
    const Tensor num_rows = pool.ints({1}, {2});
    const Tensor h = pool.full({5, 3}, 7.0), dpre = pool.full({5, width}, 7.0), dweight = pool.full({5}, 7.0);
    const Tensor expected_h = pool.full({5, 3}, 7.0), expected_dpre = pool.full({5, width}, 7.0);
    const Tensor expected_dweight = pool.full({5}, 7.0);
    ops->activation_forward({kind, pre.rows(0, 2), weight.rows(0, 2), expected_h.rows(0, 2)});
    ops->activation_backward({kind, pre.rows(0, 2), weight.rows(0, 2), dh.rows(0, 2), expected_dpre.rows(0, 2),
                              expected_dweight.rows(0, 2)});
    ops->activation_forward({kind, pre, weight, h, num_rows});
    ops->activation_backward({kind, pre, weight, dh, dpre, dweight, num_rows});
    EXPECT_TRUE(same_bits(h, expected_h));
    EXPECT_TRUE(same_bits(dpre, expected_dpre));
    EXPECT_TRUE(same_bits(dweight, expected_dweight));
  }
}

}  // namespace
}  // namespace nmoe::test
