// Dense and grouped products against plain loops and finite differences. Shapes are odd, empty, and larger than the
// tiles that ops/cpu/linear.cpp cuts.
#include <gtest/gtest.h>

#include "ops/contracts/pieces.h"
#include "ops/squares.h"
#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

// A sum of `depth` products of values of order one has a rounding error of about sqrt(depth) * 6e-8 in float; near()
// measures small elements against a thousandth of the largest, which leaves this for depths of some hundreds.
constexpr double kFloatTolerance = 2e-3;
constexpr double kDoubleTolerance = 1e-10;

// x w^T, row by row.
std::vector<double> product_reference(Tensor x, Tensor w) {
  const int64_t rows = x.dim(0), in = x.dim(1), out = w.dim(0);
  std::vector<double> y;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < in; ++i) sum += get(x, t * in + i) * get(w, o * in + i);
      y.push_back(sum);
    }
  }
  return y;
}

struct LinearShape {
  int64_t tokens, in, out;
};
constexpr LinearShape kLinearShapes[] = {
    {1, 1, 1}, {3, 5, 7}, {0, 4, 3}, {1, 70, 300}, {67, 1, 130}, {300, 70, 515}, {2100, 17, 9},
};

TEST(Linear, ForwardIsTheProductAndCanAccumulate) {
  for (const auto& [tokens, in, out] : kLinearShapes) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", tokens, in, out));
    for (const DType real : {DType::kF32, DType::kF64}) {
      TensorPool pool(real);
      const Tensor x = pool.normal({tokens, in}), w = pool.normal({out, in}), y = pool.full({tokens, out}, NAN);
      const auto ops = cpu_device(real);
      const double tolerance = real == DType::kF32 ? kFloatTolerance : kDoubleTolerance;
      ops->linear_forward({x, w, y});
      std::vector<double> expected = product_reference(x, w);
      EXPECT_TRUE(near(y, expected, tolerance));
      ops->linear_forward({x, w, y, y});
      for (double& value : expected) value *= 2;
      EXPECT_TRUE(near(y, expected, tolerance));
      const Tensor sum = pool.full({tokens, out}, NAN);
      ops->linear_forward({x, w, sum, y});
      for (double& value : expected) value *= 1.5;
      EXPECT_TRUE(near(sum, expected, tolerance));
    }
  }
}

TEST(Linear, BackwardMatchesFiniteDifferences) {
  TensorPool pool;
  const Tensor x = pool.normal({5, 3}), w = pool.normal({4, 3}), y = pool.zeros({5, 4}), dy = pool.normal({5, 4});
  const Tensor dx = pool.full({5, 3}, NAN), dw = pool.zeros({4, 3});
  const auto ops = cpu_device();
  ops->linear_backward_input({dy, w, dx});
  ops->linear_backward_weight({x, dy, dw, /*accumulate=*/true});
  const auto loss = [&] {
    ops->linear_forward({x, w, y});
    return dot(y, dy);
  };
  EXPECT_TRUE(gradient_matches(loss, x, dx));
  EXPECT_TRUE(gradient_matches(loss, w, dw));
}

// Without accumulate, gradients of weights are what they would be on zeros, whatever was there.
TEST(Linear, BackwardWeightWritesWhatItWouldAddToZeros) {
  TensorPool pool;
  const Tensor x = pool.normal({70, 30}), dy = pool.normal({70, 20}), offsets = pool.ints({4}, {0, 50, 50, 70});
  const Tensor dw = pool.full({20, 30}, NAN), on_zeros = pool.zeros({20, 30});
  const Tensor grouped = pool.full({3, 20, 30}, NAN), grouped_on_zeros = pool.zeros({3, 20, 30});
  const auto ops = cpu_device();
  ops->linear_backward_weight({x, dy, dw, /*accumulate=*/false});
  ops->linear_backward_weight({x, dy, on_zeros, /*accumulate=*/true});
  ops->grouped_linear_backward_weight({x, dy, offsets, grouped, /*accumulate=*/false});
  ops->grouped_linear_backward_weight({x, dy, offsets, grouped_on_zeros, /*accumulate=*/true});
  EXPECT_EQ(values(dw), values(on_zeros));
  EXPECT_EQ(values(grouped), values(grouped_on_zeros));
}

TEST(Linear, BackwardWeightLeavesSquares) {
  TensorPool pool;
  const Tensor x = pool.normal({70, 150}), dy = pool.normal({70, 20}), offsets = pool.ints({4}, {0, 50, 50, 70});
  const Tensor dw = pool.full({3, 20, 150}, NAN), squares = poisoned_squares(pool, dw.shape());
  cpu_device()->grouped_linear_backward_weight({.x = x, .dy = dy, .offsets = offsets, .dw = dw, .squares = squares});
  expect_squares(squares, dw, 1e-14);
}

// dx = dy w and dw = dy^T x are adjoint to y = x w^T: <dy, x w^T> = <dx, x> = <dw, w>. Checked with one nonzero dy at a
// time in the corners of large outputs, and with a dense one.
TEST(Linear, BackwardIsTheAdjointOfForward) {
  for (const auto& [tokens, in, out] : kLinearShapes) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", tokens, in, out));
    TensorPool pool;
    const Tensor x = pool.normal({tokens, in}), w = pool.normal({out, in}), dy = pool.normal({tokens, out});
    const Tensor y = pool.zeros({tokens, out}), dx = pool.zeros({tokens, in}), dw = pool.zeros({out, in});
    const auto ops = cpu_device();
    ops->linear_forward({x, w, y});
    ops->linear_backward_input({dy, w, dx});
    ops->linear_backward_weight({x, dy, dw, /*accumulate=*/true});
    const double expected = dot(y, dy), tolerance = 1e-9 * static_cast<double>(tokens * out + 1);
    EXPECT_LE(std::abs(dot(dx, x) - expected), tolerance);
    EXPECT_LE(std::abs(dot(dw, w) - expected), tolerance);
  }
}

TEST(Linear, GradientsAccumulateWhereTheContractSaysSo) {
  TensorPool pool;
  const Tensor x = pool.normal({300, 6}), w = pool.normal({5, 6}), dy = pool.normal({300, 5});
  const Tensor dx = pool.full({300, 6}, NAN), dw = pool.zeros({5, 6});
  const auto ops = cpu_device();
  ops->linear_backward_input({dy, w, dx});
  ops->linear_backward_weight({x, dy, dw, /*accumulate=*/true});
  std::vector<double> twice_dx = values(dx), twice_dw = values(dw);
  for (double& value : twice_dx) value *= 2;
  for (double& value : twice_dw) value *= 2;
  ops->linear_backward_input({dy, w, dx, true});
  ops->linear_backward_weight({x, dy, dw, /*accumulate=*/true});
  EXPECT_TRUE(near(dx, twice_dx, kDoubleTolerance));
  EXPECT_TRUE(near(dw, twice_dw, kDoubleTolerance));
}

TEST(Linear, FloatAgreesWithDouble) {
  for (const auto& [tokens, in, out] : kLinearShapes) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", tokens, in, out));
    std::vector<Tensor> results;
    TensorPool pools[] = {TensorPool(DType::kF32), TensorPool(DType::kF64)};
    for (TensorPool& pool : pools) {
      const Tensor x = pool.normal({tokens, in}), w = pool.normal({out, in}), dy = pool.normal({tokens, out});
      const Tensor dx = pool.zeros({tokens, in}), dw = pool.normal({out, in});
      const auto ops = cpu_device(pool.real());
      ops->linear_backward_input({dy, w, dx});
      ops->linear_backward_weight({x, dy, dw, /*accumulate=*/true});
      results.insert(results.end(), {dx, dw});
    }
    EXPECT_TRUE(near(results[0], results[2], kFloatTolerance)) << "dx";
    EXPECT_TRUE(near(results[1], results[3], kFloatTolerance)) << "dw";
  }
}

TEST(Linear, SameBitsForAnyNumberOfThreads) {
  for (const auto& [tokens, in, out] : kLinearShapes) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", tokens, in, out));
    TensorPool pool(DType::kF32);
    const Tensor x = pool.normal({tokens, in}), w = pool.normal({out, in}), dy = pool.normal({tokens, out});
    std::vector<Tensor> first;
    for (const int threads : {1, 2, 3}) {
      const auto ops = cpu_device(DType::kF32, threads);
      const std::vector<Tensor> results = {pool.zeros({tokens, out}), pool.zeros({tokens, in}), pool.zeros({out, in})};
      ops->linear_forward({x, w, results[0]});
      ops->linear_backward_input({dy, w, results[1]});
      ops->linear_backward_weight({x, dy, results[2], /*accumulate=*/true});
      if (first.empty()) first = results;
      for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(same_bits(results[i], first[i])) << threads;
    }
  }
}

// --- grouped

struct GroupedCase {
  std::string name;
  std::vector<double> offsets;
  int64_t in, out;

  int64_t num_experts() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t num_rows() const { return static_cast<int64_t>(offsets.back()); }
};
const GroupedCase kSmallGroups[] = {
    {"ragged with empty experts", {0, 0, 3, 3, 7, 8, 8}, 3, 5},
    {"all rows on one expert", {0, 0, 0, 9, 9}, 4, 2},
    {"no rows at all", {0, 0, 0}, 4, 2},
    {"one expert", {0, 5}, 1, 3},
};
// Larger than row blocks and tiles.
const GroupedCase kLargeGroups[] = {
    {"ragged", {0, 1, 301, 301, 900}, 33, 130},
    {"all rows on one expert", {0, 0, 1100, 1100}, 70, 515},
};

TEST(GroupedLinear, BackwardMatchesFiniteDifferences) {
  for (const GroupedCase& c : kSmallGroups) {
    SCOPED_TRACE(c.name);
    TensorPool pool;
    const Tensor offsets = pool.ints({c.num_experts() + 1}, c.offsets);
    const Tensor x = pool.normal({c.num_rows(), c.in}), w = pool.normal({c.num_experts(), c.out, c.in});
    const Tensor y = pool.full({c.num_rows(), c.out}, NAN), dy = pool.normal(y.shape());
    const Tensor dx = pool.full(x.shape(), NAN), dw = pool.zeros(w.shape());
    const auto ops = cpu_device();
    ops->grouped_linear_backward_input({dy, w, offsets, dx});
    ops->grouped_linear_backward_weight({x, dy, offsets, dw, /*accumulate=*/true});
    const auto loss = [&] {
      ops->grouped_linear_forward({x, w, offsets, y});
      return dot(y, dy);
    };
    EXPECT_TRUE(gradient_matches(loss, x, dx));
    EXPECT_TRUE(gradient_matches(loss, w, dw));
  }
}

TEST(GroupedLinear, EachExpertIsALinearLayerOverItsRows) {
  for (const GroupedCase& c : kLargeGroups) {
    SCOPED_TRACE(c.name);
    TensorPool pool(DType::kF32);
    const Tensor offsets = pool.ints({c.num_experts() + 1}, c.offsets);
    const Tensor x = pool.normal({c.num_rows(), c.in}), w = pool.normal({c.num_experts(), c.out, c.in});
    const Tensor dy = pool.normal({c.num_rows(), c.out}), dw_before = pool.normal(w.shape());
    const Tensor y = pool.zeros(dy.shape()), dx = pool.zeros(x.shape()), dw = pool.clone(dw_before);
    const auto ops = cpu_device(DType::kF32);
    ops->grouped_linear_forward({x, w, offsets, y});
    ops->grouped_linear_backward_input({dy, w, offsets, dx});
    ops->grouped_linear_backward_weight({x, dy, offsets, dw, /*accumulate=*/true});
    for (int64_t e = 0; e < c.num_experts(); ++e) {
      const auto begin = static_cast<int64_t>(get(offsets, e)), end = static_cast<int64_t>(get(offsets, e + 1));
      const Tensor one_y = pool.zeros({end - begin, c.out}), one_dx = pool.zeros({end - begin, c.in});
      const Tensor one_dw = pool.clone(dw_before[e]);
      ops->linear_forward({x.rows(begin, end), w[e], one_y});
      ops->linear_backward_input({dy.rows(begin, end), w[e], one_dx});
      ops->linear_backward_weight({x.rows(begin, end), dy.rows(begin, end), one_dw, /*accumulate=*/true});
      EXPECT_TRUE(near(y.rows(begin, end), one_y, kFloatTolerance)) << "expert " << e;
      EXPECT_TRUE(near(dx.rows(begin, end), one_dx, kFloatTolerance)) << "expert " << e;
      EXPECT_TRUE(near(dw[e], one_dw, kFloatTolerance)) << "expert " << e;
      if (begin == end) {
        EXPECT_TRUE(same_bits(dw[e], dw_before[e])) << "empty expert " << e;
      }
    }
  }
}

TEST(GroupedLinear, SameBitsForAnyNumberOfThreads) {
  for (const GroupedCase& c : kLargeGroups) {
    SCOPED_TRACE(c.name);
    TensorPool pool(DType::kF32);
    const Tensor offsets = pool.ints({c.num_experts() + 1}, c.offsets);
    const Tensor x = pool.normal({c.num_rows(), c.in}), w = pool.normal({c.num_experts(), c.out, c.in});
    const Tensor dy = pool.normal({c.num_rows(), c.out});
    std::vector<Tensor> first;
    for (const int threads : {1, 2, 3}) {
      const auto ops = cpu_device(DType::kF32, threads);
      const std::vector<Tensor> results = {pool.zeros(dy.shape()), pool.zeros(x.shape()), pool.zeros(w.shape())};
      ops->grouped_linear_forward({x, w, offsets, results[0]});
      ops->grouped_linear_backward_input({dy, w, offsets, results[1]});
      ops->grouped_linear_backward_weight({x, dy, offsets, results[2], /*accumulate=*/true});
      if (first.empty()) first = results;
      for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(same_bits(results[i], first[i])) << threads;
    }
  }
}

// An expert with most rows is its pieces, one after the other.
TEST(GroupedLinear, WeightGradientsAreAddedPieceByPiece) {
  constexpr int64_t kIn = 5, kOut = 6, kFirst = 7, kRows = kUncutRows + kPieceRows + 100;
  TensorPool pool(DType::kF32);
  const auto ops = cpu_device(DType::kF32);
  const Tensor x = pool.normal({kFirst + kRows, kIn}), dy = pool.normal({kFirst + kRows, kOut});
  const Tensor before = pool.normal({2, kOut, kIn});
  for (const bool accumulate : {false, true}) {
    const Tensor dw = pool.clone(before), expected = pool.clone(before[1]).reshape({1, kOut, kIn});
    ops->grouped_linear_backward_weight({x, dy, pool.ints({3}, {0, kFirst, kFirst + kRows}), dw, accumulate});
    for (int64_t begin = 0; begin < kRows; begin += kPieceRows) {
      const int64_t rows = std::min(kPieceRows, kRows - begin), first = kFirst + begin;
      ops->grouped_linear_backward_weight({x.rows(first, first + rows), dy.rows(first, first + rows),
                                           pool.ints({2}, {0, static_cast<double>(rows)}), expected,
                                           accumulate || begin > 0});
    }
    EXPECT_TRUE(same_bits(dw[1], expected[0])) << "accumulate " << accumulate;
  }
}

TEST(GroupedLinear, OffsetsBeyondTheRowsAreABug) {
  TensorPool pool;
  const auto ops = cpu_device();
  const Tensor x = pool.normal({4, 2}), w = pool.normal({1, 3, 2}), y = pool.zeros({4, 3});
  EXPECT_THROW(ops->grouped_linear_forward({x, w, pool.ints({2}, {0, 5}), y}), CheckFailure);
}

// Rows are a capacity: those behind the last expert's are neither read nor written.
TEST(GroupedLinear, LeavesRowsBehindTheLastExpertAlone) {
  TensorPool pool(DType::kF32);
  const auto ops = cpu_device(DType::kF32);
  constexpr int64_t kRoom = 40, kRows = 25, kIn = 6, kOut = 8;
  const Tensor offsets = pool.ints({4}, {0, 10, 10, kRows});
  const Tensor x = pool.normal({kRoom, kIn}), w = pool.normal({3, kOut, kIn}), dy = pool.normal({kRoom, kOut});
  const Tensor weight = pool.normal({kRoom});
  const auto rows = [](Tensor tensor) { return tensor.rows(0, kRows); };
  const auto filled = [&](int64_t width) { return pool.full({kRoom, width}, 7.0); };

  const Tensor y = filled(kOut), expected_y = filled(kOut), dx = filled(kIn), expected_dx = filled(kIn);
  const Tensor dw = pool.zeros({3, kOut, kIn}), expected_dw = pool.zeros({3, kOut, kIn});
  const Tensor h = filled(kOut / 2), expected_h = filled(kOut / 2);
  ops->grouped_linear_forward({x, w, offsets, y});
  ops->grouped_linear_forward({rows(x), w, offsets, rows(expected_y)});
  EXPECT_TRUE(same_bits(y, expected_y));
  ops->grouped_activation_forward({Activation::kSwiGlu, x, w, offsets, weight, y, h});
  ops->grouped_activation_forward(
      {Activation::kSwiGlu, rows(x), w, offsets, rows(weight), rows(expected_y), rows(expected_h)});
  EXPECT_TRUE(same_bits(h, expected_h));
  ops->grouped_linear_backward_input({dy, w, offsets, dx});
  ops->grouped_linear_backward_input({rows(dy), w, offsets, rows(expected_dx)});
  EXPECT_TRUE(same_bits(dx, expected_dx));
  ops->grouped_linear_backward_weight({x, dy, offsets, dw});
  ops->grouped_linear_backward_weight({rows(x), rows(dy), offsets, expected_dw});
  EXPECT_TRUE(same_bits(dw, expected_dw));
  const Tensor pre = pool.normal({kRoom, 2 * kIn}), dpre = filled(2 * kIn), expected_dpre = filled(2 * kIn);
  const Tensor dweight = pool.full({kRoom}, 7.0), expected_dweight = pool.full({kRoom}, 7.0);
  ops->grouped_activation_backward({Activation::kSwiGlu, dy, w, offsets, pre, weight, dpre, dweight});
  ops->grouped_activation_backward({Activation::kSwiGlu, rows(dy), w, offsets, rows(pre), rows(weight),
                                    rows(expected_dpre), rows(expected_dweight)});
  EXPECT_TRUE(same_bits(dpre, expected_dpre));
  EXPECT_TRUE(same_bits(dweight, expected_dweight));
}

// Rows that are picked are worked on like the same rows in order, to the bit: by blocks of rows, and where rows go for
// themselves. Behind the last expert's the index is not read.
TEST(GroupedLinear, PickedRowsAreThoseInOrder) {
  TensorPool pool(DType::kF32);
  constexpr int64_t kRows = 1300, kRoom = kRows + 3, kTokens = 400, kIn = 6, kOut = 10;
  const Tensor offsets = pool.ints({5}, {0, 1100, 1100, 1110, kRows});
  const Tensor index = pool.random_ints({kRoom}, kTokens), w = pool.normal({4, kOut, kIn}),
               weight = pool.normal({kRoom});
  for (int64_t row = kRows; row < kRoom; ++row) set(index, row, 1 << 30);
  const auto in_order = [&](Tensor tokens) {
    const Tensor rows = pool.full({kRoom, tokens.dim(1)}, NAN);
    for (int64_t row = 0; row < kRows; ++row) {
      const Tensor token = tokens[static_cast<int64_t>(get(index, row))];
      std::copy_n(token.data<float>(), token.num_elements(), rows[row].data<float>());
    }
    return rows;
  };
  const Tensor x = pool.normal({kTokens, kIn}), dy = pool.normal({kTokens, kOut});
  const Tensor ordered_x = in_order(x), ordered_dy = in_order(dy);
  const auto filled = [&](int64_t width) { return pool.full({kRoom, width}, 7.0); };

  for (const Arithmetic arithmetic : {Arithmetic::kFastest, Arithmetic::kBatchInvariant}) {
    const ReadyDevice ops({.num_threads = 2, .compute_dtype = DType::kF32}, 16 << 20, arithmetic);
    const Tensor pre = filled(kOut), expected_pre = filled(kOut), h = filled(kOut / 2), expected_h = filled(kOut / 2);
    ops->grouped_activation_forward({Activation::kSwiGlu, {x, index}, w, offsets, weight, pre, h});
    ops->grouped_activation_forward({Activation::kSwiGlu, ordered_x, w, offsets, weight, expected_pre, expected_h});
    EXPECT_TRUE(same_bits(pre, expected_pre));
    EXPECT_TRUE(same_bits(h, expected_h));
  }
  const auto ops = cpu_device(DType::kF32);
  const Tensor pre = pool.normal({kRoom, 2 * kIn}), dpre = filled(2 * kIn), expected_dpre = filled(2 * kIn);
  const Tensor dweight = pool.full({kRoom}, 7.0), expected_dweight = pool.full({kRoom}, 7.0);
  ops->grouped_activation_backward({Activation::kSwiGlu, {dy, index}, w, offsets, pre, weight, dpre, dweight});
  ops->grouped_activation_backward(
      {Activation::kSwiGlu, ordered_dy, w, offsets, pre, weight, expected_dpre, expected_dweight});
  EXPECT_TRUE(same_bits(dpre, expected_dpre));
  EXPECT_TRUE(same_bits(dweight, expected_dweight));
  const Tensor dw = pool.zeros(w.shape()), expected_dw = pool.zeros(w.shape());
  ops->grouped_linear_backward_weight({ordered_x, ordered_dy, offsets, expected_dw});
  ops->grouped_linear_backward_weight({{x, index}, ordered_dy, offsets, dw});
  EXPECT_TRUE(same_bits(dw, expected_dw));
  ops->grouped_linear_backward_weight({ordered_x, {dy, index}, offsets, dw});
  EXPECT_TRUE(same_bits(dw, expected_dw));
}

// The second layer's input gradient with the activation in front of it is the two operations.
TEST(GroupedLinear, ActivationBackwardIsThatOfTheInputGradient) {
  TensorPool pool;
  const auto ops = cpu_device();
  const Tensor offsets = pool.ints({4}, {0, 3, 3, 8});
  const Tensor dy = pool.normal({8, 5}), w = pool.normal({3, 5, 6}), dh = pool.zeros({8, 6});
  ops->grouped_linear_backward_input({dy, w, offsets, dh});
  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    for (const bool weighted : {true, false}) {
      const auto like_weight = [&] { return weighted ? pool.zeros({8}) : Tensor(); };
      const Tensor pre = pool.normal({8, kind == Activation::kSwiGlu ? 12 : 6});
      const Tensor weight = weighted ? pool.normal({8}) : Tensor();
      const Tensor dpre = pool.zeros(pre.shape()), expected_dpre = pool.zeros(pre.shape());
      const Tensor dweight = like_weight(), expected_dweight = like_weight();
      ops->grouped_activation_backward({kind, dy, w, offsets, pre, weight, dpre, dweight});
      ops->activation_backward({kind, pre, weight, dh, expected_dpre, expected_dweight});
      EXPECT_TRUE(same_bits(dpre, expected_dpre));
      if (weighted) {
        EXPECT_TRUE(same_bits(dweight, expected_dweight));
      }
      const Tensor h = pool.zeros({8, 6}), expected_h = pool.zeros({8, 6});
      ops->activation_forward({kind, pre, weight, expected_h});
      ops->grouped_activation_backward({.kind = kind,
                                        .dy = dy,
                                        .w = w,
                                        .offsets = offsets,
                                        .pre = pre,
                                        .row_weight = weight,
                                        .dpre = pre,
                                        .drow_weight = dweight,
                                        .h = h});
      EXPECT_TRUE(same_bits(pre, dpre)) << "in place";
      EXPECT_TRUE(same_bits(h, expected_h));
    }
  }
}

}  // namespace
}  // namespace nmoe::test
