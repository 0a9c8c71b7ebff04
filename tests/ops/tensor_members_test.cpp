// Arguments of operations are taken apart whatever they consist of.
#include "ops/checked/tensor_members.h"

#include <gtest/gtest.h>

namespace nmoe::test {
namespace {

struct Inner {
  Tensor x;
  int64_t size = 0;
  Tensor y;
};
// More than operations have today: tensors are the first, the last, and within.
struct ManyMembers {
  Tensor first;
  double a1 = 0, a2 = 0, a3 = 0, a4 = 0, a5 = 0, a6 = 0, a7 = 0, a8 = 0, a9 = 0, a10 = 0;
  Inner inner;
  bool b1 = false, b2 = false, b3 = false, b4 = false, b5 = false, b6 = false, b7 = false, b8 = false;
  std::vector<Inner> all;
  float c1 = 0, c2 = 0, c3 = 0, c4 = 0, c5 = 0, c6 = 0, c7 = 0, c8 = 0, c9 = 0, c10 = 0;
  OperandRows rows;
  Tensor last;
};

Tensor of_size(int64_t size) { return Tensor(nullptr, DType::kF32, {size}); }

TEST(TensorMembers, AreFoundInOrderHoweverManyMembersThereAre) {
  static_assert(checked::num_members<Inner>() == 3);
  static_assert(checked::num_members<ManyMembers>() == 33);
  ManyMembers value{.first = of_size(1),
                    .inner = {.x = of_size(2), .y = of_size(3)},
                    .all = {{.x = of_size(4), .y = of_size(5)}, {.x = of_size(6), .y = of_size(7)}},
                    .rows = {of_size(8), of_size(9), of_size(10)},
                    .last = of_size(11)};
  std::vector<int64_t> sizes;
  checked::for_each_tensor(value, [&](Tensor& tensor) {
    sizes.push_back(tensor.dim(0));
    tensor = of_size(100);
  });
  EXPECT_EQ(sizes, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(value.last.dim(0), 100);  // they are the members themselves
}

}  // namespace
}  // namespace nmoe::test
