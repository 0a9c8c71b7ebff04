// Grouped linear layers on CUDA against the CPU's. Needs a GPU.

#include <numeric>

#include "ops/cuda/cuda_test.h"
#include "ops/cuda/plans.h"
#include "ops/squares.h"

namespace nmoe::test {
namespace {

struct GroupCase {
  int64_t in, out;
  std::vector<double> rows;  // of every expert
};

// Sizes around the tiles' (64 and 128), and widths that are multiples of 8, of 2 and of nothing.
std::vector<GroupCase> group_cases() {
  return {
      {64, 32, {5, 0, 17, 1}},
      {128, 128, {128, 256}},
      {136, 264, {0, 129, 0, 63, 127, 0}},
      {30, 50, {3, 40, 0, 70}},  // no accesses of 16 bytes
      {33, 7, {65, 1, 0, 2}},    // odd: nor of pairs
      {40, 35, {10, 0, 150}},    // one operand by 16 bytes, the other not
      {1, 1, {1}},
      {8, 200, {0, 0, 0}},       // no rows at all
      {96, 72, {0, 0, 0, 300}},  // all to the last expert
      {72, 96, {300, 0, 0, 0}},
      {48, 40, {1, 2, 0, 1, 0, 3, 1, 1, 0, 2, 1, 0, 1, 1, 1, 4, 0, 0, 1, 2, 1, 0,
                1, 1, 5, 0, 1, 1, 1, 0, 0, 0, 0, 2, 1, 1, 0, 9, 0, 1, 1, 0, 1}},  // more experts than lanes
      {264, 136, {700, 300, 1}},                                                  // more steps than stages
      {584, 200, {33, 0, 130}},                // three tiles of columns, the last one of 72
      {384, 640, {300, 0, 130, 1000, 64, 0}},  // last tiles of half the width, experts of very different sizes
      // Gradients of weights in tall tiles, the last one's second strip not full, and in wide ones, whose last columns
      // are few, or many.
      {376, 456, {90, 0, 129}},
      {264, 264, {33, 200}},
      {392, 264, {130, 0, 65}},
  };
}

// With all multiprocessors, and with so few that their blocks take one tile after the other and go round their stages.
constexpr int kNumSms[] = {0, 2};

class CudaGroupedLinear : public CudaTest, public ::testing::WithParamInterface<std::tuple<size_t, DType, int>> {
 protected:
  CudaGroupedLinear() : CudaTest(std::get<2>(GetParam())) {
    const int64_t num_experts = static_cast<int64_t>(case_.rows.size());
    std::vector<double> ends(case_.rows.size() + 1);
    std::partial_sum(case_.rows.begin(), case_.rows.end(), ends.begin() + 1);
    offsets_ = pool_.ints({num_experts + 1}, ends);
    num_rows_ = static_cast<int64_t>(ends.back());
    x_ = rounded(pool_.normal({num_rows_, case_.in}), act_);
    w_ = rounded(pool_.normal({num_experts, case_.out, case_.in}), act_);
    dy_ = rounded(pool_.normal({num_rows_, case_.out}), act_);
  }

  // Both sum exact products (bf16) or products rounded to fp32, in fp32, in different orders: some 1e-7 of the largest
  // results, seen relative to a thousandth of them. A result in bf16 is rounded to 8 bits besides: half a unit is at
  // most 2^-8 of it.
  double tolerance(DType result) const { return result == DType::kBF16 ? 4.4e-3 : 5e-4; }

  GroupCase case_ = group_cases()[std::get<0>(GetParam())];
  DType act_ = std::get<1>(GetParam());
  Tensor offsets_, x_, w_, dy_;
  int64_t num_rows_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Cases, CudaGroupedLinear,
                         ::testing::Combine(::testing::Range(size_t{0}, group_cases().size()),
                                            ::testing::ValuesIn(kActDTypes), ::testing::ValuesIn(kNumSms)));

TEST_P(CudaGroupedLinear, ForwardMatchesTheCpu) {
  const Tensor expected = pool_.full({num_rows_, case_.out}, 9.0), y = up(expected, act_);  // must be overwritten
  gpu().grouped_linear_forward({up(x_, act_), up(w_, act_), up(offsets_), y});
  cpu().grouped_linear_forward({x_, w_, offsets_, expected});
  EXPECT_TRUE(near(down(y), expected, tolerance(act_)));
}

TEST_P(CudaGroupedLinear, BackwardInputMatchesTheCpu) {
  const Tensor expected = pool_.full({num_rows_, case_.in}, 9.0), dx = up(expected, act_);  // must be overwritten
  gpu().grouped_linear_backward_input({up(dy_, act_), up(w_, act_), up(offsets_), dx});
  cpu().grouped_linear_backward_input({dy_, w_, offsets_, expected});
  EXPECT_TRUE(near(down(dx), expected, tolerance(act_)));
}

TEST_P(CudaGroupedLinear, BackwardWeightAddsWhatTheCpuAdds) {
  const Tensor expected = pool_.normal(w_.shape()), before = pool_.clone(expected), dw = up(expected);
  const Tensor x = up(x_, act_), dy = up(dy_, act_), offsets = up(offsets_);
  run([&](Ops& ops) { ops.grouped_linear_backward_weight({x, dy, offsets, dw, /*accumulate=*/true}); });
  cpu().grouped_linear_backward_weight({x_, dy_, offsets_, expected, /*accumulate=*/true});
  const Tensor actual = down(dw);
  EXPECT_TRUE(near(actual, expected, tolerance(DType::kF32)));
  for (int64_t expert = 0; expert < w_.dim(0); ++expert) {
    if (case_.rows[static_cast<size_t>(expert)] > 0) continue;
    EXPECT_TRUE(same_bits(actual[expert], before[expert])) << "expert " << expert << " has no rows";
  }
}

// Without accumulate, what was there does not matter, and experts without rows get zeros.
TEST_P(CudaGroupedLinear, BackwardWeightWritesWhatItWouldAddToZeros) {
  const Tensor dw = up(pool_.full(w_.shape(), NAN)), expected = up(pool_.zeros(w_.shape()));
  const Tensor x = up(x_, act_), dy = up(dy_, act_), offsets = up(offsets_);
  run([&](Ops& ops) { ops.grouped_linear_backward_weight({x, dy, offsets, dw, false}); });
  run([&](Ops& ops) { ops.grouped_linear_backward_weight({x, dy, offsets, expected, true}); });
  EXPECT_EQ(values(down(dw)), values(down(expected)));
}

// Of experts without rows too. A product's bits stay as they are.
TEST_P(CudaGroupedLinear, BackwardWeightLeavesSquares) {
  const Tensor x = up(x_, act_), dy = up(dy_, act_), offsets = up(offsets_);
  const Tensor dw = up(pool_.full(w_.shape(), NAN)), same = up(pool_.full(w_.shape(), NAN));
  const Tensor squares = up(poisoned_squares(pool_, w_.shape()));
  run([&](Ops& ops) {
    ops.grouped_linear_backward_weight({.x = x, .dy = dy, .offsets = offsets, .dw = dw, .squares = squares});
  });
  run([&](Ops& ops) { ops.grouped_linear_backward_weight({x, dy, offsets, same}); });
  const Tensor gradients = down(dw);
  EXPECT_EQ(values(gradients), values(down(same)));
  expect_squares(down(squares), gradients, 2e-6);  // 16 are added in F32
}

// Rows of dw that are a gradient of their own, of few rows, come from wide tiles.
TEST_P(CudaGroupedLinear, BackwardWeightHasTheSameBitsFromTilesOfEitherShape) {
  if (act_ != DType::kBF16 || cuda::gradient_tile(case_.out, case_.in) != cuda::kTallGradientTile) return;
  const int64_t num_experts = w_.dim(0), in = case_.in;
  const Tensor x = up(x_, act_), offsets = up(offsets_), scale = up(pool_.full({num_experts}, 0.75));
  for (const bool scaled : {false, true}) {
    OperandRounding rounding;
    if (scaled) rounding.product_scale = scale;
    const auto gradient = [&](Tensor dy, Tensor squares) {
      const Tensor dw = up(pool_.full({num_experts, dy.dim(1), in}, NAN));
      run([&](Ops& ops) {
        ops.grouped_linear_backward_weight(
            {.x = x, .dy = up(dy, act_), .offsets = offsets, .dw = dw, .rounding = rounding, .squares = squares});
      });
      return down(dw);
    };
    const Tensor squares = up(poisoned_squares(pool_, w_.shape())), dw = gradient(dy_, squares);
    constexpr int64_t kRows = 7 * kSquareRows;
    for (int64_t first = 0; first < case_.out; first += kRows) {
      const int64_t rows = std::min(kRows, case_.out - first), part = first / kSquareRows;
      ASSERT_EQ(cuda::gradient_tile(rows, in), cuda::kWideGradientTile);
      const Tensor dy = pool_.zeros({num_rows_, rows});
      for (int64_t i = 0; i < num_rows_; ++i) std::copy_n(dy_[i].data<float>() + first, rows, dy[i].data<float>());
      const Tensor few_squares = up(poisoned_squares(pool_, {num_experts, rows, in})), few = gradient(dy, few_squares);
      const Tensor all_parts = down(squares), few_parts = down(few_squares);
      for (int64_t expert = 0; expert < num_experts; ++expert) {
        SCOPED_TRACE(fmt::format("expert {}, from row {} on, scaled {}", expert, first, scaled));
        EXPECT_TRUE(same_bits(dw[expert].rows(first, first + rows), few[expert]));
        EXPECT_TRUE(same_bits(all_parts[expert].rows(part, part + few_parts.dim(1)), few_parts[expert]));
      }
    }
  }
}

// The first layer with its activation is the two operations, to the bit.
TEST_P(CudaGroupedLinear, ActivationMatchesThatOfTheProduct) {
  if (case_.out % 2 != 0) return;
  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    const int64_t hidden = kind == Activation::kSwiGlu ? case_.out / 2 : case_.out;
    const Tensor x = up(x_, act_), w = up(w_, act_), offsets = up(offsets_), weight = up(pool_.normal({num_rows_}));
    const auto poisoned = [&](int64_t width) { return up(pool_.full({num_rows_, width}, 9.0), act_); };
    const Tensor pre = poisoned(case_.out), h = poisoned(hidden);
    const Tensor expected_pre = poisoned(case_.out), expected_h = poisoned(hidden);
    gpu().grouped_activation_forward({kind, x, w, offsets, weight, pre, h});
    gpu().grouped_linear_forward({x, w, offsets, expected_pre});
    gpu().activation_forward({kind, expected_pre, weight, expected_h});
    EXPECT_TRUE(same_bits(down(pre), down(expected_pre)));
    EXPECT_TRUE(same_bits(down(h), down(expected_h)));
  }
}

// The second layer's input gradient with the activation in front of it: to the bit the two operations for
// pre-activations; a row weight's gradient is a sum over the row in another order.
TEST_P(CudaGroupedLinear, ActivationBackwardMatchesThatOfTheInputGradient) {
  const Tensor dy = up(dy_, act_), w = up(w_, act_), offsets = up(offsets_);
  const Tensor dh = up(pool_.zeros({num_rows_, case_.in}), act_);
  gpu().grouped_linear_backward_input({dy, w, offsets, dh});
  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    for (const bool weighted : {true, false}) {
      const auto poisoned = [&] { return weighted ? up(pool_.full({num_rows_}, 9.0)) : Tensor(); };
      const Tensor host_pre = normal({num_rows_, kind == Activation::kSwiGlu ? 2 * case_.in : case_.in}, act_);
      const Tensor pre = up(host_pre, act_), weight = weighted ? up(pool_.normal({num_rows_})) : Tensor();
      const Tensor dpre = up(pool_.full(pre.shape(), 9.0), act_), expected_dpre = up(pool_.zeros(pre.shape()), act_);
      const Tensor dweight = poisoned(), expected_dweight = poisoned();
      run([&](Ops& ops) { ops.grouped_activation_backward({kind, dy, w, offsets, pre, weight, dpre, dweight}); });
      gpu().activation_backward({kind, pre, weight, dh, expected_dpre, expected_dweight});
      EXPECT_TRUE(same_bits(down(dpre), down(expected_dpre)));
      if (weighted) {
        // Terms of either sign in fp32: an error of some 1e-7 of the largest, seen as in tolerance().
        EXPECT_TRUE(near(down(dweight), down(expected_dweight), 5e-4));
      }
      const Tensor dweight_again = poisoned();
      const Tensor h = up(pool_.full({num_rows_, case_.in}, 9.0), act_), expected_h = up(down(h), act_);
      gpu().activation_forward({.kind = kind, .pre = pre, .row_weight = weight, .h = expected_h});
      gpu().grouped_activation_backward({.kind = kind,
                                         .dy = dy,
                                         .w = w,
                                         .offsets = offsets,
                                         .pre = pre,
                                         .row_weight = weight,
                                         .dpre = pre,
                                         .drow_weight = dweight_again,
                                         .h = h});
      EXPECT_TRUE(same_bits(down(pre), down(dpre))) << "in place";
      EXPECT_TRUE(same_bits(down(h), down(expected_h)));
      if (weighted) {
        EXPECT_TRUE(same_bits(down(dweight_again), down(dweight)));
      }
    }
  }
}

// Against the CPU, in whose way nothing is rounded to BF16 in between.
TEST_P(CudaGroupedLinear, ActivationBackwardMatchesTheCpu) {
  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const Tensor pre = normal({num_rows_, activation_parts(kind) * case_.in}, act_), weight = pool_.normal({num_rows_});
    const Tensor expected_dpre = pool_.full(pre.shape(), 9.0), expected_dweight = pool_.full({num_rows_}, 9.0);
    const Tensor dpre = up(expected_dpre, act_), dweight = up(expected_dweight);
    gpu().grouped_activation_backward(
        {kind, up(dy_, act_), up(w_, act_), up(offsets_), up(pre, act_), up(weight), dpre, dweight});
    cpu().grouped_activation_backward({kind, dy_, w_, offsets_, pre, weight, expected_dpre, expected_dweight});
    // In bf16 dh is rounded, and what it makes is too. A sum's error goes by its terms: seen relative to the largest
    // sum.
    const bool exact = act_ == DType::kF32;
    EXPECT_TRUE(near(down(dpre), expected_dpre, exact ? 2e-3 : 2 * 4.4e-3));
    const std::vector<double> sums = values(down(dweight)), expected_sums = values(expected_dweight);
    double largest = 0;
    for (const double sum : expected_sums) largest = std::max(largest, std::abs(sum));
    for (size_t row = 0; row < sums.size(); ++row) {
      EXPECT_LE(std::abs(sums[row] - expected_sums[row]), (exact ? 1e-5 : 0x1p-7) * largest) << "row " << row;
    }
  }
}

// Rows that are picked give the bits of rows in order. Behind those of the last expert the index is not read, and rows
// that nobody picks do not show.
TEST_P(CudaGroupedLinear, PickedRowsGiveTheBitsOfRowsInOrder) {
  const int64_t spare = 5, capacity = num_rows_ + spare, num_tokens = num_rows_ / 3 + 2;
  const Tensor index = pool_.random_ints({capacity}, num_tokens - 1);
  for (int64_t row = num_rows_; row < capacity; ++row) set(index, row, 1 << 30);
  const Tensor device_index = up(index), offsets = up(offsets_), w = up(w_, act_);
  struct Rows {
    OperandRows picked;
    Tensor ordered;
  };
  const auto rows_of = [&](int64_t width) -> Rows {
    const Tensor tokens = normal({num_tokens, width}, act_), ordered = pool_.full({capacity, width}, NAN);
    for (int64_t i = 0; i < width; ++i) set(tokens[num_tokens - 1], i, NAN);
    for (int64_t row = 0; row < num_rows_; ++row) {
      const Tensor token = tokens[static_cast<int64_t>(get(index, row))];
      std::copy_n(token.data<float>(), width, ordered[row].data<float>());
    }
    return {.picked = {up(tokens, act_), device_index}, .ordered = up(ordered, act_)};
  };
  const auto poisoned = [&](int64_t width) { return up(pool_.full({capacity, width}, 9.0), act_); };
  const Rows x = rows_of(case_.in), dy = rows_of(case_.out);
  const Tensor weight = up(pool_.normal({capacity}));

  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    const bool halves = kind == Activation::kSwiGlu;
    if (halves && case_.out % 2 != 0) continue;
    const int64_t hidden = halves ? case_.out / 2 : case_.out;
    const Tensor pre = poisoned(case_.out), h = poisoned(hidden);
    const Tensor expected_pre = poisoned(case_.out), expected_h = poisoned(hidden);
    run([&](Ops& ops) { ops.grouped_activation_forward({kind, x.picked, w, offsets, weight, pre, h}); });
    run([&](Ops& ops) {
      ops.grouped_activation_forward({kind, x.ordered, w, offsets, weight, expected_pre, expected_h});
    });
    EXPECT_TRUE(same_bits(down(pre), down(expected_pre)));
    EXPECT_TRUE(same_bits(down(h), down(expected_h)));
  }

  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    const int64_t width = kind == Activation::kSwiGlu ? 2 * case_.in : case_.in;
    const Tensor pre = up(normal({capacity, width}, act_), act_), dpre = poisoned(width), expected = poisoned(width);
    const Tensor dweight = up(pool_.full({capacity}, 9.0)), expected_dweight = up(pool_.full({capacity}, 9.0));
    const Tensor h = poisoned(case_.in), expected_h = poisoned(case_.in);
    const auto backward = [&](const OperandRows& rows, Tensor gradients, Tensor of_weights, Tensor made) {
      run([&](Ops& ops) {
        ops.grouped_activation_backward({.kind = kind,
                                         .dy = rows,
                                         .w = w,
                                         .offsets = offsets,
                                         .pre = pre,
                                         .row_weight = weight,
                                         .dpre = gradients,
                                         .drow_weight = of_weights,
                                         .h = made});
      });
    };
    backward(dy.picked, dpre, dweight, h);
    backward(dy.ordered, expected, expected_dweight, expected_h);
    EXPECT_TRUE(same_bits(down(dpre), down(expected)));
    EXPECT_TRUE(same_bits(down(dweight), down(expected_dweight)));
    EXPECT_TRUE(same_bits(down(h), down(expected_h)));
  }

  for (const bool accumulate : {false, true}) {
    const Tensor before = pool_.normal(w_.shape()), dw = up(before);
    const auto gradient_of = [&](const OperandRows& inputs, const OperandRows& gradients) {
      gpu().copy({up(before), dw});
      run([&](Ops& ops) { ops.grouped_linear_backward_weight({inputs, gradients, offsets, dw, accumulate}); });
      return down(dw);
    };
    const Tensor expected = gradient_of(x.ordered, dy.ordered);
    EXPECT_TRUE(same_bits(gradient_of(x.picked, dy.ordered), expected)) << "accumulate " << accumulate;
    EXPECT_TRUE(same_bits(gradient_of(x.ordered, dy.picked), expected)) << "accumulate " << accumulate;
  }
}

// What other rows there are does not show in a row's bits.
TEST_P(CudaGroupedLinear, RowsDoNotDependOnOtherRows) {
  if (num_rows_ == 0) return;
  const auto last = static_cast<int64_t>(case_.rows.size()) - 1;
  if (case_.rows[static_cast<size_t>(last)] == 0) return;
  std::vector<double> one_row(case_.rows.size() + 1);
  one_row.back() = 1;
  const Tensor all = up(pool_.zeros({num_rows_, case_.out}), act_), one = up(pool_.zeros({1, case_.out}), act_);
  const Tensor w = up(w_, act_);
  gpu().grouped_linear_forward({up(x_, act_), w, up(offsets_), all});
  gpu().grouped_linear_forward(
      {up(x_.rows(num_rows_ - 1, num_rows_), act_), w, up(pool_.ints({offsets_.dim(0)}, one_row)), one});
  EXPECT_TRUE(same_bits(down(one), down(all.rows(num_rows_ - 1, num_rows_))));
}

// Rows beyond the last expert's are room for more: whatever is there does not show, and what is written stays inside.
TEST_P(CudaGroupedLinear, CapacityBeyondTheRowsIsLeftAlone) {
  const int64_t spare = 201, capacity = num_rows_ + spare;
  const auto with_spare = [&](Tensor rows) {
    const Tensor all = up(pool_.full({capacity, rows.dim(1)}, NAN), act_);
    if (num_rows_ > 0) gpu().copy({rows, all.rows(0, num_rows_)});
    return all;
  };
  const auto poisoned = [&](int64_t width) { return up(pool_.full({capacity, width}, 9.0), act_); };
  const auto expect_same_rows = [&](Tensor all, Tensor exact, const char* name) {
    EXPECT_TRUE(same_bits(down(all.rows(0, num_rows_)), down(exact))) << name;
    const std::vector<double> untouched(static_cast<size_t>(spare * all.dim(1)), 9.0);
    EXPECT_TRUE(near(down(all.rows(num_rows_, capacity)), untouched, 0)) << name;
  };
  const Tensor w = up(w_, act_), offsets = up(offsets_), exact_x = up(x_, act_), exact_dy = up(dy_, act_);
  const Tensor x = with_spare(exact_x), dy = with_spare(exact_dy);

  const Tensor y = poisoned(case_.out), exact_y = up(pool_.zeros({num_rows_, case_.out}), act_);
  gpu().grouped_linear_forward({x, w, offsets, y});
  gpu().grouped_linear_forward({exact_x, w, offsets, exact_y});
  expect_same_rows(y, exact_y, "y");

  const Tensor dx = poisoned(case_.in), exact_dx = up(pool_.zeros({num_rows_, case_.in}), act_);
  gpu().grouped_linear_backward_input({dy, w, offsets, dx});
  gpu().grouped_linear_backward_input({exact_dy, w, offsets, exact_dx});
  expect_same_rows(dx, exact_dx, "dx");

  const Tensor dw = up(pool_.full(w_.shape(), NAN)), exact_dw = up(pool_.full(w_.shape(), NAN));
  gpu().grouped_linear_backward_weight({x, dy, offsets, dw});
  gpu().grouped_linear_backward_weight({exact_x, exact_dy, offsets, exact_dw});
  EXPECT_TRUE(same_bits(down(dw), down(exact_dw)));

  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    const int64_t pre_width = kind == Activation::kSwiGlu ? 2 * case_.in : case_.in;
    const Tensor exact_pre = up(normal({num_rows_, pre_width}, act_), act_), pre = with_spare(exact_pre);
    const Tensor weight = pool_.normal({capacity}), exact_weight = up(weight.rows(0, num_rows_));
    const Tensor dpre = poisoned(pre_width), exact_dpre = up(pool_.zeros(exact_pre.shape()), act_);
    const Tensor dweight = up(pool_.full({capacity}, 9.0)), exact_dweight = up(pool_.zeros({num_rows_}));
    gpu().grouped_activation_backward({kind, dy, w, offsets, pre, up(weight), dpre, dweight});
    gpu().grouped_activation_backward({kind, exact_dy, w, offsets, exact_pre, exact_weight, exact_dpre, exact_dweight});
    expect_same_rows(dpre, exact_dpre, "dpre");
    expect_same_rows(dweight.reshape({capacity, 1}), exact_dweight.reshape({num_rows_, 1}), "dweight");
  }

  if (case_.out % 2 != 0) return;
  for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
    const int64_t hidden = kind == Activation::kSwiGlu ? case_.out / 2 : case_.out;
    const Tensor weight = pool_.normal({capacity}), pre = poisoned(case_.out), h = poisoned(hidden);
    const Tensor exact_pre = up(pool_.zeros({num_rows_, case_.out}), act_);
    const Tensor exact_h = up(pool_.zeros({num_rows_, hidden}), act_);
    gpu().grouped_activation_forward({kind, x, w, offsets, up(weight), pre, h});
    gpu().grouped_activation_forward({kind, exact_x, w, offsets, up(weight.rows(0, num_rows_)), exact_pre, exact_h});
    expect_same_rows(pre, exact_pre, "pre");
    expect_same_rows(h, exact_h, "h");
  }
}

// Wide and tall tiles of weights' gradients, in panels of 64 rows or columns that all of them load.
TEST(GradientTiles, AreThoseThatLoadLess) {
  using cuda::gradient_tile, cuda::kTallGradientTile, cuda::kWideGradientTile;
  EXPECT_EQ(gradient_tile(768, 384), kTallGradientTile);    // 60 and 54
  EXPECT_EQ(gradient_tile(2048, 1408), kTallGradientTile);  // 544 and 528
  EXPECT_EQ(gradient_tile(768, 768), kWideGradientTile);    // 108 each
  EXPECT_EQ(gradient_tile(264, 392), kWideGradientTile);    // 31 and 34
  EXPECT_EQ(gradient_tile(128, 1 << 20), kWideGradientTile);
  EXPECT_EQ(gradient_tile(1 << 20, 128), kTallGradientTile);
  EXPECT_EQ(kTallGradientTile.count(768, 384), 9);
  EXPECT_EQ(kWideGradientTile.count(768, 384), 12);
  EXPECT_EQ(kTallGradientTile.count(257, 129), 4);
}

}  // namespace
}  // namespace nmoe::test
