// Gradients of experts' weights under skew: an expert with more than kUncutRows rows against its pieces, one after the
// other, each an operation of its own, to the bit; and against the CPU. Needs a GPU.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <tuple>
#include <vector>

#include "ops/contracts/linear.h"
#include "ops/contracts/pieces.h"
#include "ops/cuda/cuda_test.h"
#include "ops/signal_to_noise.h"
#include "ops/squares.h"

namespace nmoe::test {
namespace {

struct PieceCase {
  const char* name;
  int64_t in, out;
  std::vector<double> rows;  // of every expert
};

std::vector<PieceCase> piece_cases() {
  constexpr auto kPiece = static_cast<double>(kPieceRows), kUncut = static_cast<double>(kUncutRows);
  return {
      {"nine tenths to one expert", 48, 32, {300, 0, kUncut + 233, 1, 600, 398}},
      {"around pieces' ends", 16, 16, {kUncut, kUncut + 1, kUncut + kPiece, kPiece + 1, 0, kUncut + kPiece + 130}},
      {"several tiles of BF16, tall", 272, 144, {0, kUncut + 232, 300}},
      {"several tiles of rows", 272, 528, {0, kUncut + 232, 300}},
      {"several tiles of BF16, wide", 272, 272, {0, kUncut + 232, 300}},
      {"all to the only expert", 16, 32, {kUncut + kPiece + 40}},
      {"room for pieces, none there", 32, 16, {kUncut / 2, kUncut / 2 + 700, 300}},
  };
}

enum class Picked { kNone, kX, kDy };

// kNumSms: all multiprocessors, so that pieces are worked on side by side, or two, one after the other.
class CudaWeightPieces : public CudaTest,
                         public ::testing::WithParamInterface<std::tuple<size_t, OperandFormat, Picked, int>> {
 protected:
  CudaWeightPieces() : CudaTest(std::get<3>(GetParam()), int64_t{192} << 20) {
    ends_.resize(case_.rows.size() + 1);
    std::partial_sum(case_.rows.begin(), case_.rows.end(), ends_.begin() + 1);
    num_rows_ = static_cast<int64_t>(ends_.back());
    num_tokens_ = num_rows_ / 3 + 1;
    std::vector<double> picks;
    for (int64_t i = 0; i < num_rows_; ++i) picks.push_back(static_cast<double>(i * 37 % num_tokens_));
    index_ = pool_.ints({num_rows_}, picks);
    x_ = rounded(pool_.normal({picks_x() ? num_tokens_ : num_rows_, case_.in}), DType::kBF16);
    dy_ = rounded(pool_.normal({picks_dy() ? num_tokens_ : num_rows_, case_.out}), DType::kBF16);
  }
  bool picks_x() const { return std::get<2>(GetParam()) == Picked::kX; }
  bool picks_dy() const { return std::get<2>(GetParam()) == Picked::kDy; }
  OperandRounding rounding() const { return {.format = std::get<1>(GetParam())}; }
  int64_t num_experts() const { return std::ssize(case_.rows); }

  // The gradients of all experts, added to `before` where it is defined; squares [E, ..] or undefined.
  Tensor gradients(const OperandRows& x, const OperandRows& dy, Tensor before, Tensor squares = {}) {
    const Shape shape{num_experts(), case_.out, case_.in};
    const Tensor dw = up(before.defined() ? before : pool_.full(shape, NAN)),
                 offsets = up(pool_.ints({num_experts() + 1}, ends_));
    run([&](Ops& ops) {
      ops.grouped_linear_backward_weight({.x = x,
                                          .dy = dy,
                                          .offsets = offsets,
                                          .dw = dw,
                                          .accumulate = before.defined(),
                                          .rounding = rounding(),
                                          .squares = squares});
    });
    return down(dw);
  }
  // One expert's, piece by piece, as if there were no others.
  Tensor by_pieces(const OperandRows& x, const OperandRows& dy, int64_t expert, Tensor before) {
    const Tensor dw = up(before.defined() ? before : pool_.zeros({1, case_.out, case_.in}));
    const auto at = static_cast<size_t>(expert);
    const auto begin = static_cast<int64_t>(ends_[at]), end = static_cast<int64_t>(ends_[at + 1]);
    const auto part = [](const OperandRows& rows, int64_t first, int64_t last) -> OperandRows {
      if (rows.index.defined()) return {rows.source, rows.index.rows(first, last)};
      return rows.source.rows(first, last);
    };
    for (int64_t first = begin; first < end; first += piece_rows(end - begin)) {
      const int64_t last = std::min(first + piece_rows(end - begin), end);
      const Tensor offsets = up(pool_.ints({2}, {0, static_cast<double>(last - first)}));
      run([&](Ops& ops) {
        ops.grouped_linear_backward_weight({.x = part(x, first, last),
                                            .dy = part(dy, first, last),
                                            .offsets = offsets,
                                            .dw = dw,
                                            .accumulate = before.defined() || first > begin,
                                            .rounding = rounding()});
      });
    }
    return down(dw);
  }

  PieceCase case_ = piece_cases()[std::get<0>(GetParam())];
  std::vector<double> ends_;
  int64_t num_rows_ = 0, num_tokens_ = 0;
  Tensor index_, x_, dy_;
};

INSTANTIATE_TEST_SUITE_P(Cases, CudaWeightPieces,
                         ::testing::Combine(::testing::Range(size_t{0}, piece_cases().size()),
                                            ::testing::Values(OperandFormat::kAct, OperandFormat::kFp8),
                                            ::testing::Values(Picked::kNone, Picked::kX, Picked::kDy),
                                            ::testing::Values(0, 2)));

TEST_P(CudaWeightPieces, AreAddedInTheirOrder) {
  SCOPED_TRACE(case_.name);
  const Tensor index = up(index_), device_x = up(x_, DType::kBF16), device_dy = up(dy_, DType::kBF16);
  const OperandRows x{device_x, picks_x() ? index : Tensor()}, dy{device_dy, picks_dy() ? index : Tensor()};
  const Tensor before = pool_.normal({num_experts(), case_.out, case_.in}, 10.0);
  for (const bool accumulate : {false, true}) {
    const Tensor actual = gradients(x, dy, accumulate ? before : Tensor());
    for (int64_t expert = 0; expert < num_experts(); ++expert) {
      const Tensor expected = by_pieces(x, dy, expert, accumulate ? before.rows(expert, expert + 1) : Tensor());
      EXPECT_TRUE(same_bits(actual[expert], expected[0])) << "expert " << expert << ", accumulate " << accumulate;
    }
    EXPECT_TRUE(same_bits(gradients(x, dy, accumulate ? before : Tensor()), actual)) << "the second time";
  }
}

TEST_P(CudaWeightPieces, LeaveTheGradientsOfTheCpuAndTheirSquares) {
  SCOPED_TRACE(case_.name);
  const Tensor index = up(index_), device_x = up(x_, DType::kBF16), device_dy = up(dy_, DType::kBF16);
  const Tensor expected = pool_.zeros({num_experts(), case_.out, case_.in});
  const Tensor squares = up(poisoned_squares(pool_, expected.shape()));
  const Tensor actual =
      gradients({device_x, picks_x() ? index : Tensor()}, {device_dy, picks_dy() ? index : Tensor()}, {}, squares);
  cpu().grouped_linear_backward_weight({.x = {x_, picks_x() ? index_ : Tensor()},
                                        .dy = {dy_, picks_dy() ? index_ : Tensor()},
                                        .offsets = pool_.ints({num_experts() + 1}, ends_),
                                        .dw = expected,
                                        .rounding = rounding()});
  // Tensor cores' sums of FP8 codes keep 13 bits; those of BF16 lose the last of 24 at each step.
  EXPECT_GT(signal_to_noise(actual, expected), std::get<1>(GetParam()) == OperandFormat::kFp8 ? 50 : 80);
  expect_squares(down(squares), actual, 2e-6);
}

}  // namespace
}  // namespace nmoe::test
