#include <cmath>

#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

constexpr double kEps = 0.01;  // large enough to show in every gradient

struct RmsNormRun {
  RmsNormRun(DType real, int num_threads, int64_t num_rows, int64_t width) : pool(real) {
    ops = cpu_device(real, num_threads);
    x = pool.normal({num_rows, width}, 3.0, 0.5);
    gain = pool.normal({width}, 0.5, 1.0);
    y = pool.zeros({num_rows, width});
    rstd = pool.zeros({num_rows});
    dy = pool.normal({num_rows, width});
    dx = pool.full({num_rows, width}, 7.0);  // must be overwritten
    dgain = pool.zeros({width});
    ops->rms_norm_forward({x, gain, kEps, y, rstd});
    ops->rms_norm_backward({x, gain, rstd, dy, dx, dgain});
  }
  TensorPool pool;
  ReadyDevice ops;
  Tensor x, gain, y, rstd, dy, dx, dgain;
};

TEST(RmsNorm, ForwardMatchesTheDefinition) {
  constexpr int64_t kRows = 3, kWidth = 17;
  const RmsNormRun run(DType::kF64, 2, kRows, kWidth);
  std::vector<double> y, rstd;
  for (int64_t row = 0; row < kRows; ++row) {
    double squares = 0;
    for (int64_t i = 0; i < kWidth; ++i) squares += std::pow(get(run.x, row * kWidth + i), 2);
    rstd.push_back(1 / std::sqrt(squares / kWidth + kEps));
    for (int64_t i = 0; i < kWidth; ++i) y.push_back(get(run.x, row * kWidth + i) * rstd.back() * get(run.gain, i));
  }
  EXPECT_TRUE(near(run.y, y, 1e-14));
  EXPECT_TRUE(near(run.rstd, rstd, 1e-14));
}

TEST(RmsNorm, BackwardMatchesFiniteDifferences) {
  for (const Shape shape : {Shape{1, 1}, Shape{1, 33}, Shape{5, 7}, Shape{4, 16}}) {
    const RmsNormRun run(DType::kF64, 2, shape[0], shape[1]);
    const auto loss = [&] {
      run.ops->rms_norm_forward({run.x, run.gain, kEps, run.y, run.rstd});
      return dot(run.y, run.dy);
    };
    EXPECT_TRUE(gradient_matches(loss, run.x, run.dx)) << shape.to_string();
    EXPECT_TRUE(gradient_matches(loss, run.gain, run.dgain)) << shape.to_string();
  }
}

// With an offset, what a gain larger by it gives without.
TEST(RmsNorm, GainsMayBeZeroCentred) {
  RmsNormRun run(DType::kF64, 2, 5, 7);
  const Tensor centred = run.pool.zeros({7}), y = run.pool.zeros({5, 7}), dx = run.pool.zeros({5, 7});
  const Tensor dcentred = run.pool.zeros({7});
  for (int64_t i = 0; i < 7; ++i) set(centred, i, get(run.gain, i) - 1);
  const auto loss = [&] {
    run.ops->rms_norm_forward({.x = run.x, .gain = centred, .eps = kEps, .y = y, .rstd = run.rstd, .gain_offset = 1});
    return dot(y, run.dy);
  };
  loss();
  run.ops->rms_norm_backward(
      {.x = run.x, .gain = centred, .rstd = run.rstd, .dy = run.dy, .dx = dx, .dgain = dcentred, .gain_offset = 1});
  EXPECT_TRUE(near(y, run.y, 1e-14));
  EXPECT_TRUE(near(dx, run.dx, 1e-13));
  EXPECT_TRUE(near(dcentred, run.dgain, 1e-13));
  EXPECT_TRUE(gradient_matches(loss, run.x, dx));
  EXPECT_TRUE(gradient_matches(loss, centred, dcentred));
}

TEST(RmsNorm, BackwardAddsToGainAndOnRequestToInput) {
  RmsNormRun run(DType::kF64, 2, 4, 9);
  const Tensor dx = run.pool.full({4, 9}, 2.0), dgain = run.pool.full({9}, 3.0);
  run.ops->rms_norm_backward({run.x, run.gain, run.rstd, run.dy, dx, dgain,
                              /*accumulate_dx=*/true});
  for (int64_t i = 0; i < 36; ++i) set(run.dx, i, get(run.dx, i) + 2);
  for (int64_t i = 0; i < 9; ++i) set(run.dgain, i, get(run.dgain, i) + 3);
  EXPECT_TRUE(near(dx, run.dx, 1e-14));
  EXPECT_TRUE(near(dgain, run.dgain, 1e-14));
}

// Many narrow rows (queries and keys), so that the gain's gradient comes from several partial sums.
TEST(RmsNorm, GainGradientSumsEveryRow) {
  constexpr int64_t kRows = 5000, kWidth = 24;
  const RmsNormRun run(DType::kF64, 2, kRows, kWidth);
  std::vector<double> expected(kWidth);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kWidth; ++i) {
      expected[static_cast<size_t>(i)] +=
          get(run.dy, row * kWidth + i) * get(run.x, row * kWidth + i) * get(run.rstd, row);
    }
  }
  EXPECT_TRUE(near(run.dgain, expected, 1e-12));
}

TEST(RmsNorm, FloatAgreesWithDouble) {
  const RmsNormRun single(DType::kF32, 2, 300, 257), exact(DType::kF64, 2, 300, 257);
  EXPECT_TRUE(near(single.y, exact.y, 2e-6));
  EXPECT_TRUE(near(single.dx, exact.dx, 1e-4));  // relative to a thousandth of the largest: sums cancel
  EXPECT_TRUE(near(single.dgain, exact.dgain, 1e-4));
}

TEST(RmsNorm, BitsDoNotDependOnThreads) {
  const RmsNormRun one(DType::kF32, 1, 5000, 31), three(DType::kF32, 3, 5000, 31);
  EXPECT_TRUE(same_bits(one.y, three.y));
  EXPECT_TRUE(same_bits(one.rstd, three.rstd));
  EXPECT_TRUE(same_bits(one.dx, three.dx));
  EXPECT_TRUE(same_bits(one.dgain, three.dgain));
}

TEST(RmsNorm, ZeroRowsGiveZerosThroughEps) {
  const auto ops = cpu_device(DType::kF32);
  TensorPool pool(DType::kF32);
  const Tensor x = pool.zeros({1, 4}), y = pool.full({1, 4}, 1.0), rstd = pool.zeros({1});
  ops->rms_norm_forward({x, pool.full({4}, 1.0), kEps, y, rstd});
  EXPECT_TRUE(near(y, {0, 0, 0, 0}, 0));
  EXPECT_TRUE(near(rstd, {1 / std::sqrt(kEps)}, 1e-6));
}

TEST(RmsNorm, CountingRunClaimsTheScratchOfARealOne) {
  const RmsNormRun run(DType::kF32, 2, 5000, 31);
  const auto counting = make_device({.num_threads = 2});
  const Tensor x = without_data(run.x), gain = without_data(run.gain), rstd = without_data(run.rstd);
  counting->ops().rms_norm_forward({x, gain, kEps, x, rstd});
  counting->ops().rms_norm_backward({x, gain, rstd, x, x, gain, false});
  EXPECT_GT(counting->scratch(Lane::kCompute).high_water(), 0);
  EXPECT_EQ(counting->scratch(Lane::kCompute).high_water(), run.ops->scratch().high_water());
}

}  // namespace
}  // namespace nmoe::test
