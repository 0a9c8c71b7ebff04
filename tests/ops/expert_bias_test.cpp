// Biases of experts' products, against the products without and finite differences.
#include <gtest/gtest.h>

#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

// Experts with many rows, none and one; two rows of the room are nobody's.
struct Problem {
  explicit Problem(DType real) : pool(real) {}
  static constexpr int64_t kRows = 303, kRoom = kRows + 2, kTokens = 50, kIn = 5, kOut = 6;

  TensorPool pool;
  Tensor offsets = pool.ints({5}, {0, 300, 300, 301, kRows}), index = pool.random_ints({kRoom}, kTokens);
  Tensor x = pool.normal({kRoom, kIn}), w = pool.normal({4, kOut, kIn}), values = pool.normal({4, kOut});
  Tensor row_weight = pool.normal({kRoom}), y = pool.full({kRoom, kOut}, 7.0);

  int64_t expert_of(int64_t row) const { return row < 300 ? 0 : row < 301 ? 2 : 3; }
};

TEST(ExpertBias, IsAddedToTheRowsOfAnExpert) {
  for (const bool weighted : {false, true}) {
    Problem p(DType::kF64);
    const auto ops = cpu_device();
    const Tensor plain = p.pool.full(p.y.shape(), 7.0);
    ops->grouped_linear_forward({p.x, p.w, p.offsets, plain});
    ops->grouped_linear_forward(
        {.x = p.x, .w = p.w, .offsets = p.offsets, .y = p.y, .bias = {p.values, weighted ? p.row_weight : Tensor()}});
    for (int64_t row = 0; row < Problem::kRoom; ++row) {
      const double weight = row >= Problem::kRows ? 0.0 : weighted ? get(p.row_weight, row) : 1.0;
      for (int64_t i = 0; i < Problem::kOut; ++i) {
        const int64_t at = row * Problem::kOut + i;
        EXPECT_NEAR(get(p.y, at), get(plain, at) + weight * get(p.values, p.expert_of(row) * Problem::kOut + i), 1e-13);
      }
    }
  }
}

TEST(ExpertBias, OfAnotherShapeIsABug) {
  Problem p(DType::kF64);
  const auto ops = cpu_device();
  for (const ExpertBias& bias : {ExpertBias{p.pool.normal({4, 5})}, ExpertBias{p.values, p.pool.normal({3})}}) {
    EXPECT_THROW(ops->grouped_linear_forward({.x = p.x, .w = p.w, .offsets = p.offsets, .y = p.y, .bias = bias}),
                 CheckFailure);
  }
}

TEST(ExpertBias, IsInFrontOfTheActivation) {
  Problem p(DType::kF32);
  const auto ops = cpu_device(DType::kF32);
  const Tensor h = p.pool.full({Problem::kRoom, 3}, 7.0), expected = p.pool.full(h.shape(), 7.0);
  const Tensor pre = p.pool.full(p.y.shape(), 7.0);
  ops->grouped_linear_forward({.x = p.x, .w = p.w, .offsets = p.offsets, .y = p.y, .bias = {p.values}});
  ops->activation_forward({Activation::kClampedSwiGlu, p.y, p.row_weight, expected, p.offsets.rows(4, 5)});
  ops->grouped_activation_forward({.kind = Activation::kClampedSwiGlu,
                                   .x = p.x,
                                   .w = p.w,
                                   .offsets = p.offsets,
                                   .row_weight = p.row_weight,
                                   .pre = pre,
                                   .h = h,
                                   .bias = {p.values}});
  EXPECT_TRUE(same_bits(pre, p.y));
  EXPECT_TRUE(same_bits(h, expected));
}

TEST(ExpertBias, BackwardMatchesFiniteDifferencesAndAdds) {
  Problem p(DType::kF64);
  const auto ops = cpu_device();
  const Tensor dy = p.pool.normal(p.y.shape());
  for (int64_t i = Problem::kRows * Problem::kOut; i < dy.num_elements(); ++i) set(dy, i, 0.0);
  const Tensor dvalues = p.pool.full(p.values.shape(), 1.0), drow_weight = p.pool.full({Problem::kRoom}, 1.0);
  const ExpertBias bias{p.values, p.row_weight};
  ops->expert_bias_backward(
      {.dy = dy, .offsets = p.offsets, .bias = bias, .dvalues = dvalues, .drow_weight = drow_weight});
  const auto loss = [&] {
    ops->grouped_linear_forward({.x = p.x, .w = p.w, .offsets = p.offsets, .y = p.y, .bias = bias});
    double total = 0;  // and what gradients began with
    for (int64_t i = 0; i < p.values.num_elements(); ++i) total += get(p.values, i);
    for (int64_t i = 0; i < Problem::kRoom; ++i) total += get(p.row_weight, i);
    return total + dot(p.y, dy);
  };
  EXPECT_TRUE(gradient_matches(loss, p.values, dvalues));
  EXPECT_TRUE(gradient_matches(loss, p.row_weight, drow_weight));
}

TEST(ExpertBias, PickedRowsAndThreadsChangeNoBit) {
  Problem p(DType::kF32);
  const Tensor tokens = p.pool.normal({Problem::kTokens, Problem::kOut}), ordered = p.pool.full(p.y.shape(), NAN);
  for (int64_t row = 0; row < Problem::kRows; ++row) {
    const auto token = static_cast<int64_t>(get(p.index, row));
    for (int64_t i = 0; i < Problem::kOut; ++i)
      set(ordered, row * Problem::kOut + i, get(tokens, token * Problem::kOut + i));
  }
  const auto run = [&](const OperandRows& dy, int threads) {
    std::vector<Tensor> result = {p.pool.zeros(p.values.shape()), p.pool.zeros({Problem::kRoom})};
    cpu_device(DType::kF32, threads)
        ->expert_bias_backward({.dy = dy,
                                .offsets = p.offsets,
                                .bias = {p.values, p.row_weight},
                                .dvalues = result[0],
                                .drow_weight = result[1]});
    return result;
  };
  const auto expected = run(ordered, 1);
  for (const int threads : {1, 3}) {
    const auto found = run({tokens, p.index}, threads);
    EXPECT_TRUE(same_bits(found[0], expected[0]));
    EXPECT_TRUE(same_bits(found[1], expected[1]));
  }
}

}  // namespace
}  // namespace nmoe::test
