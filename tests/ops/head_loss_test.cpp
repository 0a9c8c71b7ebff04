// Fused head and cross-entropy against the definition and finite differences. Token counts cross the chunks of
// ops/cpu/head_loss.cpp; vocabularies are multiples of nothing.
#include <gtest/gtest.h>

#include "ops/log_sum.h"
#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

// Some targets are negative: no loss there.
HeadLoss make_head_loss(TensorPool& pool, int64_t tokens, int64_t dim, int64_t vocab) {
  const Tensor x = pool.normal({tokens, dim}), w = pool.normal({vocab, dim});
  const Tensor targets = pool.random_ints({tokens}, vocab);
  for (int64_t t = 2; t < tokens; t += 5) set(targets, t, -1);
  const Tensor grad_scale = pool.zeros(DType::kF64, {1});
  set(grad_scale, 0, 0.25);
  return {x, w, targets, grad_scale, pool.full({tokens}, NAN), pool.full({tokens, dim}, NAN), pool.zeros({vocab, dim})};
}

std::vector<double> reference_losses(const HeadLoss& a) {
  const int64_t tokens = a.x.dim(0), dim = a.x.dim(1), vocab = a.w.dim(0);
  std::vector<double> losses;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto target = static_cast<int64_t>(get(a.targets, t));
    double sum = 0, target_logit = 0;
    for (int64_t v = 0; v < vocab; ++v) {
      double logit = 0;
      for (int64_t d = 0; d < dim; ++d) logit += get(a.x, t * dim + d) * get(a.w, v * dim + d);
      sum += std::exp(logit);
      if (v == target) target_logit = logit;
    }
    losses.push_back(target < 0 ? 0.0 : std::log(sum) - target_logit);
  }
  return losses;
}

TEST(HeadLoss, LossIsTheDefinition) {
  for (const auto& [tokens, dim, vocab] : {std::tuple{1, 3, 2}, {7, 5, 37}, {600, 3, 67}, {3, 2, 1031}}) {
    TensorPool pool;
    const HeadLoss args = make_head_loss(pool, tokens, dim, vocab);
    cpu_device()->head_loss(args);
    EXPECT_TRUE(near(args.losses, reference_losses(args), 1e-10)) << tokens << " tokens, vocabulary " << vocab;
  }
}

// With gradients and without, where there is a target and where there is none. Two chunks; doubled rows of the weight
// make equal logits.
TEST(HeadLoss, PredictionsAreTheLargestLogits) {
  for (const auto& [tokens, dim, vocab] : {std::tuple{1, 3, 2}, {7, 5, 38}, {600, 3, 66}, {3, 2, 1032}}) {
    SCOPED_TRACE(fmt::format("{} tokens of {}, vocabulary {}", tokens, dim, vocab));
    TensorPool pool;
    HeadLoss args = make_head_loss(pool, tokens, dim, vocab);
    for (int64_t i = 0; i < args.w.num_elements() / 2; ++i) set(args.w, i + args.w.num_elements() / 2, get(args.w, i));
    std::vector<double> expected;
    for (int64_t t = 0; t < tokens; ++t) {
      int64_t best = -1;
      double highest = -INFINITY;
      for (int64_t v = 0; v < vocab / 2; ++v) {
        double logit = 0;
        for (int64_t d = 0; d < dim; ++d) logit += get(args.x, t * dim + d) * get(args.w, v * dim + d);
        if (logit > highest) {
          highest = logit;
          best = v;
        }
      }
      expected.push_back(static_cast<double>(best));
    }
    args.predictions = pool.ints({tokens}, std::vector<double>(static_cast<size_t>(tokens), -1));
    const auto ops = cpu_device();
    ops->head_loss(args);
    EXPECT_EQ(values(args.predictions), expected);
    EXPECT_TRUE(near(args.losses, reference_losses(args), 1e-10));

    args.dx = args.dw = args.grad_scale = Tensor();
    args.predictions = pool.ints({tokens}, std::vector<double>(static_cast<size_t>(tokens), -1));
    ops->head_loss(args);
    EXPECT_EQ(values(args.predictions), expected);
  }
}

TEST(HeadLoss, BackwardMatchesFiniteDifferences) {
  for (const auto& [tokens, dim, vocab] : {std::tuple{1, 3, 2}, {7, 3, 11}, {300, 1, 5}}) {
    SCOPED_TRACE(fmt::format("{} tokens of {}, vocabulary {}", tokens, dim, vocab));
    TensorPool pool;
    const HeadLoss args = make_head_loss(pool, tokens, dim, vocab);
    const auto ops = cpu_device();
    ops->head_loss(args);
    HeadLoss loss_only = args;
    loss_only.losses = pool.zeros(args.losses.shape());
    loss_only.dx = loss_only.dw = loss_only.grad_scale = Tensor();
    const auto loss = [&] {
      ops->head_loss(loss_only);
      double sum = 0;
      for (const double value : values(loss_only.losses)) sum += value;
      return get(args.grad_scale, 0) * sum;
    };
    loss();
    EXPECT_TRUE(same_bits(args.losses, loss_only.losses));
    EXPECT_TRUE(gradient_matches(loss, args.x, args.dx));
    EXPECT_TRUE(gradient_matches(loss, args.w, args.dw));
  }
}

// With a weight for each target, and with the z loss beside the cross-entropy.
struct HeadLossTerms : ::testing::TestWithParam<std::pair<bool, bool>> {
  HeadLoss make(int64_t tokens, int64_t dim, int64_t vocab) {
    HeadLoss args = make_head_loss(pool, tokens, dim, vocab);
    if (GetParam().first) args.weights = pool.normal({tokens});
    if (!GetParam().second) return args;
    args.z_losses = pool.full({tokens}, NAN);
    args.z_scale = pool.zeros(DType::kF64, {1});
    set(args.z_scale, 0, 0.125);
    return args;
  }

  TensorPool pool;
};

TEST_P(HeadLossTerms, LossesAreTheirDefinitions) {
  for (const auto& [tokens, dim, vocab] : {std::tuple{1, 3, 2}, {7, 5, 37}, {600, 3, 67}}) {
    const HeadLoss args = make(tokens, dim, vocab);
    cpu_device()->head_loss(args);
    std::vector<double> entropies = reference_losses(args), z_losses;
    for (int64_t t = 0; t < tokens; ++t) {
      if (args.weights.defined()) entropies[static_cast<size_t>(t)] *= get(args.weights, t);
      double sum = 0;
      for (int64_t v = 0; v < vocab; ++v) {
        double logit = 0;
        for (int64_t d = 0; d < dim; ++d) logit += get(args.x, t * dim + d) * get(args.w, v * dim + d);
        sum += std::exp(logit);
      }
      z_losses.push_back(get(args.targets, t) < 0 ? 0.0 : std::pow(std::log(sum), 2));
    }
    EXPECT_TRUE(near(args.losses, entropies, 1e-10)) << tokens << " tokens, vocabulary " << vocab;
    if (args.z_losses.defined()) {
      EXPECT_TRUE(near(args.z_losses, z_losses, 1e-10)) << tokens << " tokens, vocabulary " << vocab;
    }
  }
}

TEST_P(HeadLossTerms, BackwardMatchesFiniteDifferences) {
  for (const auto& [tokens, dim, vocab] : {std::tuple{1, 3, 2}, {7, 3, 11}, {300, 1, 5}}) {
    SCOPED_TRACE(fmt::format("{} tokens of {}, vocabulary {}", tokens, dim, vocab));
    const HeadLoss args = make(tokens, dim, vocab);
    const auto ops = cpu_device();
    ops->head_loss(args);
    HeadLoss loss_only = args;
    loss_only.dx = loss_only.dw = loss_only.grad_scale = loss_only.z_scale = Tensor();
    const auto loss = [&] {
      ops->head_loss(loss_only);
      double sum = 0;
      for (const double value : values(args.losses)) sum += get(args.grad_scale, 0) * value;
      for (int64_t t = 0; args.z_losses.defined() && t < tokens; ++t) {
        sum += get(args.z_scale, 0) * get(args.z_losses, t);
      }
      return sum;
    };
    EXPECT_TRUE(gradient_matches(loss, args.x, args.dx));
    EXPECT_TRUE(gradient_matches(loss, args.w, args.dw));
  }
}

INSTANTIATE_TEST_SUITE_P(, HeadLossTerms,
                         ::testing::Values(std::pair{true, false}, std::pair{false, true}, std::pair{true, true}));

// What is not asked for costs no bit: neither weights of 1, nor a z loss that counts nothing.
TEST(HeadLoss, TermsThatChangeNothingKeepTheBits) {
  TensorPool pool(DType::kF32);
  const HeadLoss plain = make_head_loss(pool, 600, 33, 1030);
  HeadLoss terms = plain;
  terms.losses = pool.full({600}, NAN);
  terms.dx = pool.full({600, 33}, NAN);
  terms.dw = pool.zeros({1030, 33});
  terms.weights = pool.full({600}, 1.0);
  terms.z_losses = pool.full({600}, NAN);
  terms.z_scale = pool.zeros(DType::kF64, {1});
  cpu_device(DType::kF32)->head_loss(plain);
  cpu_device(DType::kF32)->head_loss(terms);
  EXPECT_TRUE(same_bits(terms.losses, plain.losses));
  EXPECT_TRUE(same_bits(terms.dx, plain.dx));
  EXPECT_TRUE(same_bits(terms.dw, plain.dw));
}

TEST(HeadLoss, WeightGradientAccumulatesAndIgnoredTokensHaveNone) {
  TensorPool pool;
  HeadLoss args = make_head_loss(pool, 9, 4, 13);
  const auto ops = cpu_device();
  ops->head_loss(args);
  for (int64_t d = 0; d < 4; ++d) EXPECT_EQ(get(args.dx, 2 * 4 + d), 0.0);
  std::vector<double> twice = values(args.dw);
  for (double& value : twice) value *= 2;
  args.accumulate_dw = true;
  ops->head_loss(args);
  EXPECT_TRUE(near(args.dw, twice, 1e-12));
}

TEST(HeadLoss, NoTargetsAtAll) {
  TensorPool pool(DType::kF32);
  HeadLoss args = make_head_loss(pool, 4, 3, 7);
  args.targets = pool.ints({4}, {-1, -1, -5, -1});
  cpu_device(DType::kF32)->head_loss(args);
  EXPECT_EQ(values(args.losses), std::vector<double>(4, 0.0));
  EXPECT_EQ(values(args.dx), std::vector<double>(12, 0.0));
  EXPECT_EQ(values(args.dw), std::vector<double>(21, 0.0));
}

// Logits of some 1e4 overflow e^x by far.
TEST(HeadLoss, HugeLogitsStayFinite) {
  TensorPool pool(DType::kF32);
  const HeadLoss args = make_head_loss(pool, 40, 8, 100);
  for (int64_t i = 0; i < args.x.num_elements(); ++i) set(args.x, i, 1e4 * get(args.x, i));
  cpu_device(DType::kF32)->head_loss(args);
  for (const Tensor& x : {args.losses, args.dx, args.dw}) {
    for (const double value : values(x)) ASSERT_TRUE(std::isfinite(value));
  }
}

// Float: exp is good to 2 ulp; sums run over the vocabulary (dx), the tokens (dw) and the width (logits), hundreds of
// terms of either sign, and small elements are measured against a thousandth of the largest.
TEST(HeadLoss, FloatAgreesWithDouble) {
  TensorPool single_pool(DType::kF32), double_pool(DType::kF64);
  const HeadLoss single_args = make_head_loss(single_pool, 300, 24, 515);
  const HeadLoss double_args = make_head_loss(double_pool, 300, 24, 515);
  cpu_device(DType::kF32)->head_loss(single_args);
  cpu_device(DType::kF64)->head_loss(double_args);
  EXPECT_TRUE(near(single_args.losses, double_args.losses, 1e-4));
  EXPECT_TRUE(near(single_args.dx, double_args.dx, 2e-3));
  EXPECT_TRUE(near(single_args.dw, double_args.dw, 2e-3));
}

TEST(HeadLoss, SameBitsForAnyNumberOfThreads) {
  TensorPool first_pool(DType::kF32);
  const HeadLoss first = make_head_loss(first_pool, 600, 33, 1030);
  for (const int threads : {1, 2, 3}) {
    TensorPool pool(DType::kF32);
    const HeadLoss args = threads == 1 ? first : make_head_loss(pool, 600, 33, 1030);
    cpu_device(DType::kF32, threads)->head_loss(args);
    EXPECT_TRUE(same_bits(args.losses, first.losses)) << threads;
    EXPECT_TRUE(same_bits(args.dx, first.dx)) << threads;
    EXPECT_TRUE(same_bits(args.dw, first.dw)) << threads;
  }
}

TEST(LogitSums, AreTheDefinition) {
  for (const auto& [rows, vocab] : {std::pair<int64_t, int64_t>{0, 5}, {1, 1}, {7, 37}, {300, 1031}}) {
    TensorPool pool;
    const Tensor logits = pool.normal({rows, vocab}, 3.0), sums = pool.full({rows, 3}, NAN);
    const std::vector<double> before = values(logits);
    cpu_device()->logit_sums({.logits = logits, .sums = sums});
    EXPECT_EQ(values(logits), before);
    std::vector<double> expected;
    for (int64_t row = 0; row < rows; ++row) {
      const std::span<const double> own = logits[row].span<double>();
      const double highest = *std::ranges::max_element(own);
      double sum = 0;
      for (const double logit : own) sum += std::exp(logit - highest);
      expected.insert(expected.end(), {highest, sum, std::log(sum)});
    }
    EXPECT_TRUE(near(sums, expected, 1e-12)) << rows << " rows, vocabulary " << vocab;
  }
}

// What generation takes log-probabilities from is what a loss is made of, with gradients and without, to the bit.
TEST(LogitSums, LossesAreMadeOfThem) {
  TensorPool pool(DType::kF32);
  HeadLoss args = make_head_loss(pool, 600, 33, 1030);
  const Tensor logits = pool.zeros({600, 1030}), sums = pool.zeros({600, 3});
  cpu_device(DType::kF32)->linear_forward({.x = args.x, .w = args.w, .y = logits, .addend = {}});
  cpu_device(DType::kF32)->logit_sums({.logits = logits, .sums = sums});
  const auto expect_losses = [&] {
    cpu_device(DType::kF32)->head_loss(args);
    for (int64_t row = 0; row < 600; ++row) {
      const float* const of_row = sums[row].data<float>();
      const auto target = static_cast<int64_t>(get(args.targets, row));
      if (target < 0) continue;
      const LogSum sum{.highest = of_row[0], .sum = of_row[1], .log = of_row[2]};
      ASSERT_EQ(args.losses.data<float>()[row], sum.loss(logits[row].data<float>()[target])) << "row " << row;
    }
  };
  expect_losses();
  args.dx = args.dw = args.grad_scale = Tensor();
  expect_losses();
}

// A NaN among logits makes the sum one, whatever the others are; infinities that cancel do, too.
TEST(LogitSums, WhatIsNotFiniteShows) {
  TensorPool pool(DType::kF32);
  const Tensor logits = pool.of({4, 3}, {1, NAN, 2, NAN, NAN, NAN, 1, INFINITY, 2, 1, -INFINITY, 2});
  const Tensor sums = pool.zeros({4, 3});
  cpu_device(DType::kF32)->logit_sums({.logits = logits, .sums = sums});
  for (const int64_t row : {0, 1, 2}) EXPECT_TRUE(std::isnan(get(sums, row * 3 + 2))) << row;
  EXPECT_NEAR(get(sums, 3 * 3 + 2), std::log(1 + std::exp(-1.0)), 1e-6);
}

TEST(HeadLoss, TargetBeyondTheVocabularyIsABug) {
  TensorPool pool;
  HeadLoss args = make_head_loss(pool, 1, 2, 3);
  args.targets = pool.ints({1}, {3});
  EXPECT_THROW(cpu_device()->head_loss(args), CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
