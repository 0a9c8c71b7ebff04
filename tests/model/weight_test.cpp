#include "model/weight.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/linear.h"
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

TEST_F(WeightTest, NamesAreUniqueAndKnown) {
  EXPECT_EQ(&weights_.at("table"), &table_);
  EXPECT_ANY_THROW(weights_.at("tables"));
  EXPECT_ANY_THROW(WeightSet({{.name = "a", .shape = {1}}, {.name = "a", .shape = {2}}}));
}

}  // namespace
}  // namespace nmoe::test
