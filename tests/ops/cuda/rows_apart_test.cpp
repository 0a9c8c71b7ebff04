// Rows that lie apart, on the GPU: what dense ones give, to the bit but for attention in BF16, where another kernel may
// do it; and what lies between them stays as it is.
#include "ops/rows_apart.h"

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

using CudaRowsApart = CudaTest;

// NaN equals NaN. tolerance: relative to 1 or the largest expected value.
void expect_equal(Tensor actual, Tensor expected, double tolerance) {
  double largest = 1;
  for (const double value : values(expected)) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    const double a = get(actual, i), b = get(expected, i);
    if (std::isnan(b) && std::isnan(a)) continue;
    EXPECT_TRUE(a == b || std::abs(a - b) <= tolerance * largest) << "element " << i << ": " << a << ", expected " << b;
  }
}

// Eight columns beside, as models have them, and three, with which rows do not begin at multiples of 16 bytes.
TEST_F(CudaRowsApart, GiveTheResultsOfDenseOnes) {
  for (const DType act : kActDTypes) {
    for (const int64_t beside : {8, 3}) {
      for_each_apart_operation(pool_, cpu(), [&]<class Args>(const ApartCase<Args>& c) {
        SCOPED_TRACE(fmt::format("{} in {}, {} columns beside", c.name, dtype_name(act), beside));
        constexpr bool kIsAttention =
            std::is_same_v<Args, AttentionForward> || std::is_same_v<Args, AttentionBackward> ||
            std::is_same_v<Args, MlaAttentionForward> || std::is_same_v<Args, MlaAttentionBackward>;
        const double tolerance = kIsAttention && act == DType::kBF16 ? 3e-2 : 0.0;
        Args dense = c.args, apart = c.args;
        for (const auto member : c.apart) {
          dense.*member = up(c.args.*member, act);
          apart.*member = up(pool_.apart(c.args.*member, beside), act);
        }
        for (Args* args : {&dense, &apart}) {
          for (const auto member : c.acts) args->*member = up(c.args.*member, act);
          for (const auto member : c.rest) args->*member = up(c.args.*member);
        }
        run([&](Ops& ops) { (ops.*c.operation)(dense); });
        run([&](Ops& ops) { (ops.*c.operation)(apart); });
        for (const auto& members : {c.apart, c.acts, c.rest}) {
          for (const auto member : members) expect_equal(down(apart.*member), down(dense.*member), tolerance);
        }
        for (const auto member : c.apart) {
          const Tensor matrix = down(matrix_around(apart.*member));
          for (int64_t i = 0; i < matrix.num_elements(); ++i) {
            const int64_t column = i % matrix.dim(1);
            if (column >= beside && column < matrix.dim(1) - beside) continue;
            EXPECT_TRUE(std::isnan(get(matrix, i))) << "row " << i / matrix.dim(1) << ", column " << column;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace nmoe::test
