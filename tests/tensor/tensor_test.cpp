#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace nmoe {
namespace {

TEST(Shape, CountsAndIndexesItsDimensions) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.num_elements(), 30);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[-1], 5);
  EXPECT_EQ(shape[-3], 2);
  EXPECT_EQ(shape.to_string(), "[2, 3, 5]");
  EXPECT_THROW(shape[3], CheckFailure);
  EXPECT_THROW(shape[-4], CheckFailure);
}

TEST(Shape, OfRankZeroHasOneElementAndOfAZeroDimensionNone) {
  EXPECT_EQ(Shape().num_elements(), 1);
  EXPECT_EQ(Shape({4, 0, 7}).num_elements(), 0);
}

TEST(Shape, RefusesWhatItCannotHold) {
  EXPECT_THROW(Shape({1, 2, 3, 4, 5}), CheckFailure);
  EXPECT_THROW(Shape({2, -1}), CheckFailure);
}

TEST(Shape, EqualsByRankAndDimensions) {
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({2}), Shape({2, 1}));
}

class TensorTest : public ::testing::Test {
 protected:
  TensorTest() { std::iota(storage_.begin(), storage_.end(), 0.0F); }

  std::vector<float> storage_ = std::vector<float>(24);
  Tensor tensor_{storage_.data(), DType::kF32, {2, 3, 4}};
};

TEST_F(TensorTest, KnowsItsSize) {
  EXPECT_EQ(tensor_.num_elements(), 24);
  EXPECT_EQ(tensor_.num_bytes(), 96);
  EXPECT_EQ(tensor_.dim(-1), 4);
  EXPECT_TRUE(tensor_.defined());
  EXPECT_FALSE(Tensor().defined());
}

TEST_F(TensorTest, ViewsShareStorage) {
  EXPECT_EQ(tensor_[1].shape(), Shape({3, 4}));
  EXPECT_EQ(tensor_[1][2].data<float>()[3], 23.0F);
  EXPECT_EQ(tensor_.rows(1, 2).shape(), Shape({1, 3, 4}));
  EXPECT_EQ(tensor_.rows(1, 2).data<float>()[0], 12.0F);
  EXPECT_EQ(tensor_.rows(2, 2).num_elements(), 0);
  tensor_.reshape({6, 4})[5].span<float>()[0] = -1;
  EXPECT_EQ(storage_[20], -1.0F);
}

TEST_F(TensorTest, RefusesViewsThatDoNotFit) {
  EXPECT_THROW(tensor_.reshape({5, 5}), CheckFailure);
  EXPECT_THROW(tensor_.rows(1, 3), CheckFailure);
  EXPECT_THROW(tensor_.rows(2, 1), CheckFailure);
  EXPECT_THROW(tensor_[2], CheckFailure);
}

TEST_F(TensorTest, RefusesTheWrongType) { EXPECT_THROW(tensor_.data<double>(), CheckFailure); }

TEST(Tensor, WithoutDataHasViewsWithoutData) {
  const Tensor counted(nullptr, DType::kI32, {4, 2});
  EXPECT_TRUE(counted.defined());
  EXPECT_EQ(counted[3].raw(), nullptr);
  EXPECT_EQ(counted.rows(1, 3).num_bytes(), 16);
}

}  // namespace
}  // namespace nmoe
