#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tensor/chunks.h"

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

TEST_F(TensorTest, RowsOfColumnsLieApart) {
  const Tensor matrix = tensor_.reshape({4, 6}), middle = matrix.columns(1, 5);
  EXPECT_EQ(middle.shape(), Shape({4, 4}));
  EXPECT_FALSE(middle.dense());
  EXPECT_EQ(middle.stride(), 6);
  EXPECT_EQ(middle.rows_data<float>()[2 * middle.stride() + 3], 16.0F);
  EXPECT_EQ(middle[2].data<float>()[3], 16.0F);  // a row is dense
  EXPECT_EQ(middle.rows(1, 3).rows_data<float>()[0], 7.0F);
  EXPECT_EQ(middle.rows(1, 3).stride(), 6);
  EXPECT_EQ(middle.columns(1, 3).stride(), 6);
  EXPECT_EQ(middle.reshape({4, 2, 2})[3].data<float>()[3], 22.0F);
  EXPECT_THROW(middle.reshape({2, 8}), CheckFailure);
  EXPECT_THROW(middle.raw(), CheckFailure);
  EXPECT_THROW(middle.data<float>(), CheckFailure);
  EXPECT_THROW(matrix.columns(1, 7), CheckFailure);
  EXPECT_THROW(tensor_.columns(0, 1), CheckFailure);
}

TEST_F(TensorTest, AllColumnsAreTheMatrix) {
  const Tensor all = tensor_.reshape({4, 6}).columns(0, 6);
  EXPECT_TRUE(all.dense());
  EXPECT_EQ(all.stride(), 6);
  EXPECT_EQ(Tensor(nullptr, DType::kF32, {4, 6}).columns(2, 3).rows_raw(), nullptr);
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

// All elements once, in order, in parts that the room holds.
TEST(Parts, FitTheRoom) {
  for (const int64_t size : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{1000}, int64_t{4096}}) {
    for (const int64_t room : {int64_t{4}, int64_t{12}, 2 * size, 4 * size, 8 * size}) {
      if (room < 4) continue;
      int64_t next = 0;
      for (const ElementRange& part : parts_in(room, DType::kF32, size)) {
        EXPECT_EQ(part.offset, next);
        EXPECT_LE(part.extent * 4, room);
        next = part.end();
      }
      EXPECT_EQ(next, size) << room;
    }
    EXPECT_EQ(parts_in(4 * size, DType::kF32, size).size(), 1U);
  }
  EXPECT_TRUE(parts_in(0, DType::kF32, 0).empty());
  EXPECT_THROW(parts_in(3, DType::kF32, 1), CheckFailure);
}

TEST(Tensor, WithoutDataHasViewsWithoutData) {
  const Tensor counted(nullptr, DType::kI32, {4, 2});
  EXPECT_TRUE(counted.defined());
  EXPECT_EQ(counted[3].raw(), nullptr);
  EXPECT_EQ(counted.rows(1, 3).num_bytes(), 16);
}

}  // namespace
}  // namespace nmoe
