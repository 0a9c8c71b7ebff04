// Muon against its definition in plain loops, and the property it exists for: an update whose singular values are all
// near one.
#include <gtest/gtest.h>

#include "ops/newton_schulz.h"
#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

// Eigenvalues of a symmetric matrix by cyclic Jacobi rotations.
std::vector<double> eigenvalues(Matrix a) {
  const size_t n = a.size();
  for (int sweep = 0; sweep < 20; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        const double angle = 0.5 * std::atan2(2 * a[p][q], a[q][q] - a[p][p]);
        const double c = std::cos(angle), s = std::sin(angle);
        for (size_t k = 0; k < n; ++k) {
          const double kp = a[k][p], kq = a[k][q];
          a[k][p] = c * kp - s * kq;
          a[k][q] = s * kp + c * kq;
        }
        for (size_t k = 0; k < n; ++k) {
          const double pk = a[p][k], qk = a[q][k];
          a[p][k] = c * pk - s * qk;
          a[q][k] = s * pk + c * qk;
        }
      }
    }
  }
  std::vector<double> result;
  for (size_t i = 0; i < n; ++i) result.push_back(a[i][i]);
  return result;
}

MuonStep make_step(TensorPool& pool, Shape shape) {
  const Tensor w = pool.normal(shape), grad = pool.normal(shape), momentum = pool.normal(shape);
  const Tensor grad_scale = pool.zeros(DType::kF64, {1});
  set(grad_scale, 0, 0.5);
  const Tensor rates = pool.zeros(DType::kF64, {1});
  set(rates, 0, 0.03);
  return {.w = w,
          .grad = grad,
          .momentum = momentum,
          .grad_scale = grad_scale,
          .rates = rates,
          .beta = 0.9,
          .weight_decay = 0.1};
}

TEST(Muon, IsItsDefinition) {
  for (const Shape& shape : {Shape{6, 10}, {10, 6}, {7, 7}, {1, 5}, {5, 1}, {3, 4, 9}, {4, 9, 4}, {130, 300}}) {
    SCOPED_TRACE(shape.to_string());
    TensorPool pool;
    const MuonStep step = make_step(pool, shape);
    const Tensor w = pool.clone(step.w), momentum = pool.clone(step.momentum);
    cpu_device()->muon_step(step);

    const int64_t batch = shape.rank() == 3 ? shape[0] : 1, rows = shape[-2], cols = shape[-1];
    std::vector<double> expected_w, expected_momentum;
    for (int64_t b = 0; b < batch; ++b) {
      const auto matrix = [&](Tensor x) { return matrix_of(x.reshape({batch, rows, cols})[b]); };
      const Matrix g = matrix(step.grad), m = matrix(momentum), before = matrix(w);
      Matrix direction = zeros(g.size(), g[0].size());
      for (size_t i = 0; i < g.size(); ++i) {
        for (size_t j = 0; j < g[0].size(); ++j) {
          const double scaled = 0.5 * g[i][j];
          expected_momentum.push_back(0.9 * m[i][j] + scaled);
          direction[i][j] = scaled + 0.9 * expected_momentum.back();
        }
      }
      const Matrix o = newton_schulz(direction, step.iterations);
      const double rms_match = 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
      for (size_t i = 0; i < g.size(); ++i) {
        for (size_t j = 0; j < g[0].size(); ++j) {
          expected_w.push_back(before[i][j] - 0.03 * (rms_match * o[i][j] + 0.1 * before[i][j]));
        }
      }
    }
    EXPECT_TRUE(near(step.w, expected_w, 1e-9));
    EXPECT_TRUE(near(step.momentum, expected_momentum, 1e-12));
  }
}

TEST(Muon, UpdateIsNearlyOrthogonal) {
  for (const Shape& shape : {Shape{24, 40}, {40, 24}}) {
    TensorPool pool(DType::kF32);
    MuonStep step = make_step(pool, shape);
    step.w = pool.zeros(shape);
    set(step.rates, 0, 1);
    cpu_device(DType::kF32)->muon_step(step);
    Matrix update = matrix_of(step.w);
    for (auto& row : update) {
      for (double& value : row) value /= -0.2 * std::sqrt(40.0);
    }
    const Matrix short_side_first = update.size() < update[0].size() ? update : transposed(update);
    for (const double squared : eigenvalues(times(short_side_first, transposed(short_side_first)))) {
      EXPECT_GT(std::sqrt(squared), 0.6);
      EXPECT_LT(std::sqrt(squared), 1.3);
    }
  }
}

TEST(Muon, ZeroGradientOnlyDecays) {
  TensorPool pool;
  MuonStep step = make_step(pool, {5, 8});
  step.grad = pool.zeros({5, 8});
  step.momentum = pool.zeros({5, 8});
  std::vector<double> expected = values(step.w);
  for (double& value : expected) value *= 1 - 0.03 * 0.1;
  cpu_device()->muon_step(step);
  EXPECT_TRUE(near(step.w, expected, 1e-14));
}

TEST(Muon, AStepThatIsNotFiniteChangesNothing) {
  TensorPool pool;
  const MuonStep step = make_step(pool, {5, 8});
  set(step.grad_scale, 0, NAN);
  const Tensor w = pool.clone(step.w), momentum = pool.clone(step.momentum);
  cpu_device()->muon_step(step);
  EXPECT_TRUE(same_bits(step.w, w));
  EXPECT_TRUE(same_bits(step.momentum, momentum));
}

// Rounding enters the iteration where singular values are small, and the quintic's slope of 3.4 there magnifies it once
// an iteration: 6e-8 * 3.4^5 = 3e-5 of the update, times the products' own length.
TEST(Muon, FloatAgreesWithDouble) {
  TensorPool single_pool(DType::kF32), double_pool(DType::kF64);
  const MuonStep single_step = make_step(single_pool, {140, 70}), double_step = make_step(double_pool, {140, 70});
  cpu_device(DType::kF32)->muon_step(single_step);
  cpu_device(DType::kF64)->muon_step(double_step);
  EXPECT_TRUE(near(single_step.w, double_step.w, 1e-2));
  EXPECT_TRUE(near(single_step.momentum, double_step.momentum, 1e-4));
}

// One thread a matrix, or all threads on one: batches on either side of every thread count.
TEST(Muon, SameBitsForAnyNumberOfThreads) {
  for (const Shape& shape : {Shape{150, 300}, {2, 300, 140}, {5, 33, 65}}) {
    TensorPool first_pool(DType::kF32);
    const MuonStep first = make_step(first_pool, shape);
    for (const int threads : {1, 2, 3}) {
      TensorPool pool(DType::kF32);
      const MuonStep step = threads == 1 ? first : make_step(pool, shape);
      cpu_device(DType::kF32, threads)->muon_step(step);
      EXPECT_TRUE(same_bits(step.w, first.w)) << shape.to_string() << ", " << threads << " threads";
      EXPECT_TRUE(same_bits(step.momentum, first.momentum)) << shape.to_string() << ", " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace nmoe::test
