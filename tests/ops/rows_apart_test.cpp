// Rows that lie apart: every operation that takes them does what it does with dense ones, to the bit, and leaves what
// lies between them alone.
#include "ops/rows_apart.h"

#include <gtest/gtest.h>

#include <bit>

namespace nmoe::test {
namespace {

// NaN is among the values.
std::vector<uint64_t> value_bits(Tensor x) {
  std::vector<uint64_t> bits;
  for (const double value : values(x)) bits.push_back(std::bit_cast<uint64_t>(value));
  return bits;
}

TEST(RowsApart, GiveTheBitsOfDenseOnes) {
  constexpr int64_t kBeside = 3;
  for (const DType real : {DType::kF32, DType::kF64}) {
    TensorPool pool(real);
    const auto ops = cpu_device(real);
    for_each_apart_operation(pool, *ops, [&]<class Args>(const ApartCase<Args>& c) {
      SCOPED_TRACE(c.name);
      Args args = c.args;
      for (const auto member : c.apart) args.*member = pool.apart(c.args.*member, kBeside);
      for (const auto& members : {c.acts, c.rest}) {
        for (const auto member : members) args.*member = pool.clone(c.args.*member);
      }
      ((*ops).*c.operation)(c.args);
      ((*ops).*c.operation)(args);
      for (const auto& members : {c.apart, c.acts, c.rest}) {
        for (const auto member : members) EXPECT_EQ(value_bits(args.*member), value_bits(c.args.*member));
      }
      for (const auto member : c.apart) {
        const Tensor matrix = matrix_around(args.*member);
        for (int64_t i = 0; i < matrix.num_elements(); ++i) {
          const int64_t column = i % matrix.dim(1);
          if (column >= kBeside && column < matrix.dim(1) - kBeside) continue;
          EXPECT_TRUE(std::isnan(get(matrix, i))) << "row " << i / matrix.dim(1) << ", column " << column;
        }
      }
    });
  }
}

TEST(RowsApart, AreNotForOperationsThatWantDenseOnes) {
  TensorPool pool;
  const Tensor x = pool.apart(pool.normal({4, 6}), 1), w = pool.normal({5, 6}), y = pool.zeros({4, 5});
  EXPECT_THROW(cpu_device()->linear_forward({.x = x, .w = w, .y = y, .addend = {}}), CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
