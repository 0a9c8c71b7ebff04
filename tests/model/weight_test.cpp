#include <gtest/gtest.h>

#include <cmath>

#include "model/parts/linear.h"
#include "model/weight_set.h"
#include "support/errors.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

constexpr int64_t kRows = 3, kIn = 2, kOut = 2;

// Two matrices of one group, of which the second is used as a table, too.
class WeightTest : public ::testing::Test {
 protected:
  WeightTest()
      : weights_({{.name = "dense", .shape = {kOut, kIn}, .init_std = 1.0},
                  {.name = "table", .shape = {kOut, kIn}, .init_std = 1.0},
                  {.name = "bias",
                   .shape = {kOut},
                   .group = WeightGroup::kBuffer,
                   .is_stat = true,
                   .init = InitKind::kZeros}}),
        dense_(weights_, "dense"),
        table_(weights_.at("table")) {
    for (Arena* arena : {&values_, &grads_}) arena->reserve(ops_.device().memory(), 1 << 12);
    weights_.allocate(*ops_, values_, grads_);
    for (Weight& weight : weights_.all()) {
      if (weight.grad.defined()) ops_->fill({weight.grad, NAN});  // of an earlier step: nothing of it may be left
    }
  }

  ReadyDevice ops_ = cpu_device(DType::kF64, 1);
  TensorPool pool_{DType::kF64, 5};
  Arena values_{"values"}, grads_{"grads"};
  WeightSet weights_;
  Linear dense_;
  Weight& table_;
  Tensor x_ = pool_.full({kRows, kIn}, 1.0);
  Tensor dy_ = pool_.full({kRows, kOut}, 1.0);
  Tensor ids_ = pool_.ints({kRows}, {0, 1, 1});
};

TEST_F(WeightTest, TheFirstGradientOfAStepIsWrittenAndLaterOnesAreAdded) {
  for (int step = 0; step < 2; ++step) {
    weights_.begin_step();
    for (int microbatch = 0; microbatch < 2; ++microbatch) dense_.backward_weight(*ops_, x_, dy_);
    EXPECT_EQ(values(dense_.weight().grad), std::vector<double>(kOut * kIn, 2.0 * kRows)) << "step " << step;
  }
}

// Whichever group a weight is in: one whose backward can only add is zeroed before that.
TEST_F(WeightTest, AMatrixWhoseBackwardOnlyAddsStartsFromZero) {
  for (int step = 0; step < 2; ++step) {
    weights_.begin_step();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      ops_->embedding_backward({ids_, dy_, table_.grad_to_add_to(*ops_)});
    }
    EXPECT_EQ(values(table_.grad), (std::vector<double>{2, 2, 4, 4})) << "step " << step;
  }
}

TEST_F(WeightTest, ATiedHeadWritesAndTheTableAdds) {
  const Linear head(table_);
  for (int step = 0; step < 2; ++step) {
    weights_.begin_step();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      head.backward_weight(*ops_, x_, dy_);
      ops_->embedding_backward({ids_, dy_, table_.grad_to_add_to(*ops_)});
    }
    EXPECT_EQ(values(table_.grad), (std::vector<double>{8, 8, 10, 10})) << "step " << step;
  }
}

TEST_F(WeightTest, EveryTrainedWeightMustHaveAGradient) {
  weights_.begin_step();
  dense_.backward_weight(*ops_, x_, dy_);
  EXPECT_ANY_THROW(weights_.check_grads());
  table_.grad_to_add_to(*ops_);
  weights_.check_grads();
  weights_.begin_step();
  EXPECT_ANY_THROW(weights_.check_grads());
}

// Two matrices of sizes that no arena would let lie one behind the other, beside the same by themselves.
TEST(JoinedLinear, IsItsPartsOneBehindTheOther) {
  constexpr int64_t kInputs = 5, kFirst = 3, kSecond = 7;
  const auto ops = cpu_device(DType::kF64, 1);
  TensorPool pool(DType::kF64, 5);
  WeightSet weights({{.name = "before", .shape = {1, 3}, .init_std = 1.0},
                     {.name = "a.x", .shape = {kFirst, kInputs}, .init_std = 1.0},
                     {.name = "a.y", .shape = {kSecond, kInputs}, .init_std = 1.0, .joins_previous = true},
                     {.name = "a.z", .shape = {kSecond, kInputs}, .init_std = 1.0}});
  Arena values_arena("values"), grads_arena("grads");
  for (Arena* arena : {&values_arena, &grads_arena}) arena->reserve(ops.device().memory(), 1 << 13);
  weights.allocate(*ops, values_arena, grads_arena);
  weights.initialise(*ops, 1, 3.0);

  const Tensor x = pool.normal({kRows, kInputs}), y = pool.zeros({kRows, kFirst + kSecond});
  const Tensor y_first = pool.zeros({kRows, kFirst}), y_second = pool.zeros({kRows, kSecond});
  const JoinedLinear joined(weights, "a.", {"x", "y"});
  const Linear first(weights, "a.x"), second(weights, "a.y");
  joined.forward(*ops, x, y);
  first.forward(*ops, x, y_first);
  second.forward(*ops, x, y_second);
  EXPECT_TRUE(near(y.columns(0, kFirst), y_first, 1e-14));
  EXPECT_TRUE(near(y.columns(kFirst, kFirst + kSecond), y_second, 1e-14));

  const Tensor dy = pool.normal(y.shape()), dx = pool.full(x.shape(), NAN), expected_dx = pool.full(x.shape(), NAN);
  const Tensor dy_first = pool.clone(dy.columns(0, kFirst)), dy_second = pool.clone(dy.columns(kFirst, dy.dim(1)));
  Tensor grads[2][2];  // of each, by itself and joined
  for (const bool together : {false, true}) {
    for (const Weight& weight : weights.all()) ops->fill({weight.grad, NAN});
    weights.begin_step();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      if (together) {
        joined.backward(*ops, x, dy, dx);
      } else {
        first.backward(*ops, x, dy_first, expected_dx);
        second.backward(*ops, x, dy_second, expected_dx, /*accumulate=*/true);
      }
    }
    grads[together][0] = pool.clone(first.weight().grad);
    grads[together][1] = pool.clone(second.weight().grad);
  }
  EXPECT_TRUE(near(dx, expected_dx, 1e-14));
  for (const int part : {0, 1}) EXPECT_TRUE(near(grads[1][part], grads[0][part], 1e-14));

  const JoinedLinear not_joined(weights, "a.", {"y", "z"});
  EXPECT_THROW(not_joined.forward(*ops, x, pool.zeros({kRows, 2 * kSecond})), CheckFailure);
  weights.begin_step();
  first.backward_weight(*ops, x, dy_first);
  EXPECT_THROW(joined.backward(*ops, x, dy, dx), CheckFailure);
}

TEST_F(WeightTest, NamesAreUniqueAndKnown) {
  EXPECT_EQ(&weights_.at("table"), &table_);
  EXPECT_ANY_THROW(weights_.at("tables"));
  EXPECT_ANY_THROW(WeightSet({{.name = "a", .shape = {1}}, {.name = "a", .shape = {2}}}));
}

}  // namespace
}  // namespace nmoe::test
