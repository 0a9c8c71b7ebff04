#include <cmath>
#include <complex>

#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

constexpr int64_t kTokens = 5, kHeads = 3, kHeadSize = 14, kOffset = 3, kPairs = 4, kPositions = 11;

// Index within a head of the two members of pair i.
std::pair<int64_t, int64_t> pair_members(RopeLayout layout, int64_t i) {
  if (layout == RopeLayout::kInterleaved) return {kOffset + 2 * i, kOffset + 2 * i + 1};
  return {kOffset + i, kOffset + i + kPairs};
}

struct Inputs {
  // Tables of angles position * 0.7^i, times `magnitude` as YaRN would have it.
  Inputs(DType real, RopeLayout layout, double magnitude, int64_t num_tokens = kTokens) : pool(real) {
    args.x = pool.normal({num_tokens, kHeads, kHeadSize});
    args.positions = pool.random_ints({num_tokens}, kPositions);
    args.cos = pool.zeros({kPositions, kPairs});
    args.sin = pool.zeros({kPositions, kPairs});
    args.rope_offset = kOffset;
    args.layout = layout;
    for (int64_t position = 0; position < kPositions; ++position) {
      for (int64_t i = 0; i < kPairs; ++i) {
        const double angle = static_cast<double>(position) * std::pow(0.7, i);
        set(args.cos, position * kPairs + i, magnitude * std::cos(angle));
        set(args.sin, position * kPairs + i, magnitude * std::sin(angle));
      }
    }
  }
  TensorPool pool;
  Rope args;
};

class RopeTest : public ::testing::TestWithParam<RopeLayout> {};

INSTANTIATE_TEST_SUITE_P(Layouts, RopeTest, ::testing::Values(RopeLayout::kInterleaved, RopeLayout::kHalfSplit));

TEST_P(RopeTest, MultipliesPairsAsComplexNumbers) {
  Inputs inputs(DType::kF64, GetParam(), 1.3);
  const Rope& args = inputs.args;
  std::vector<double> expected = values(args.x);
  for (int64_t row = 0; row < kTokens * kHeads; ++row) {
    const auto position = static_cast<int64_t>(get(args.positions, row / kHeads));
    for (int64_t i = 0; i < kPairs; ++i) {
      const auto [first, second] = pair_members(GetParam(), i);
      double& re = expected[static_cast<size_t>(row * kHeadSize + first)];
      double& im = expected[static_cast<size_t>(row * kHeadSize + second)];
      const auto rotated = std::complex(re, im) * std::polar(1.3, static_cast<double>(position) * std::pow(0.7, i));
      re = rotated.real();
      im = rotated.imag();
    }
  }
  cpu_device()->rope_forward(args);
  EXPECT_TRUE(near(args.x, expected, 1e-13));
}

TEST_P(RopeTest, BackwardMatchesFiniteDifferences) {
  Inputs inputs(DType::kF64, GetParam(), 1.3);
  const auto ops = cpu_device();
  const Tensor x = inputs.args.x, dy = inputs.pool.normal(x.shape()), dx = inputs.pool.clone(dy);
  Rope gradients = inputs.args;
  gradients.x = dx;
  ops->rope_backward(gradients);
  const auto loss = [&] {
    TensorPool pool;
    Rope copy = inputs.args;
    copy.x = pool.clone(x);
    ops->rope_forward(copy);
    return dot(copy.x, dy);
  };
  EXPECT_TRUE(gradient_matches(loss, x, dx));
}

TEST_P(RopeTest, BackwardOfForwardIsTheMagnitudeSquared) {
  Inputs inputs(DType::kF32, GetParam(), 2.0);
  const std::vector<double> before = values(inputs.args.x);
  const auto ops = cpu_device(DType::kF32);
  ops->rope_forward(inputs.args);
  ops->rope_backward(inputs.args);
  std::vector<double> expected = before;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto in_head = static_cast<int64_t>(i) % kHeadSize - kOffset;
    if (in_head >= 0 && in_head < 2 * kPairs) expected[i] *= 4;
  }
  EXPECT_TRUE(near(inputs.args.x, expected, 1e-5));
}

TEST_P(RopeTest, BitsDoNotDependOnThreads) {
  Inputs one(DType::kF32, GetParam(), 1.0, 2000), three(DType::kF32, GetParam(), 1.0, 2000);
  cpu_device(DType::kF32, 1)->rope_forward(one.args);
  cpu_device(DType::kF32, 3)->rope_forward(three.args);
  EXPECT_TRUE(same_bits(one.args.x, three.args.x));
}

// q.k depends on the distance of the positions alone: what the rotation is for.
TEST_P(RopeTest, ProductsDependOnDistance) {
  Inputs inputs(DType::kF64, GetParam(), 1.0);
  const auto ops = cpu_device();
  const Tensor head = inputs.pool.normal({2, 1, kHeadSize});
  const auto product_at = [&](double query_position, double key_position) {
    TensorPool pool;
    Rope args = inputs.args;
    args.x = pool.clone(head);
    args.positions = pool.ints({2}, {query_position, key_position});
    ops->rope_forward(args);
    return dot(args.x[0], args.x[1]);
  };
  EXPECT_NEAR(product_at(9, 4), product_at(5, 0), 1e-12);
  EXPECT_GT(std::abs(product_at(9, 4) - product_at(9, 3)), 1e-3);
}

TEST_P(RopeTest, RefusesPositionsOutsideTheTables) {
  Inputs inputs(DType::kF32, GetParam(), 1.0);
  set(inputs.args.positions, 2, kPositions);
  EXPECT_THROW(cpu_device(DType::kF32)->rope_forward(inputs.args), CheckFailure);
  inputs.args.rope_offset = kHeadSize - 2 * kPairs + 1;
  EXPECT_THROW(cpu_device(DType::kF32)->rope_forward(inputs.args), CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
