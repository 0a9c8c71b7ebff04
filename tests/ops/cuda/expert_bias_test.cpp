#include <cmath>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

class CudaExpertBias : public CudaTest {
 protected:
  struct Case {
    int64_t tokens, in, out;
    std::vector<double> offsets;
  };
  Tensor sizes_of(const Tensor& x) {
    const Tensor sizes = pool_.zeros(x.shape());
    for (int64_t i = 0; i < x.num_elements(); ++i) set(sizes, i, std::abs(get(x, i)));
    return sizes;
  }

  const std::vector<Case> cases_ = {{3, 8, 8, {0, 0, 2, 2}},
                                    {70, 33, 21, {0, 5, 5, 70, 71}},
                                    {900, 64, 256, {0, 700, 701, 701, 1400}},
                                    {64, 128, 2880, {0, 30, 300}}};
};

// What sums of terms of either sign may be off: in FP32 by the sizes of these; in BF16 by a rounding of the product
// before the bias, and one of the sum behind it, with as much again to spare.
testing::AssertionResult within_roundings(DType dtype, const Tensor& actual, const Tensor& expected,
                                          const Tensor& products, const Tensor& sizes) {
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    const double rounded = std::abs(get(products, i)) + std::abs(get(expected, i));
    const double allowed = 2e-6 * get(sizes, i) + (dtype == DType::kF32 ? 0.0 : 0x1p-8 * rounded);
    const double error = std::abs(get(actual, i) - get(expected, i));
    if (!(error <= allowed)) {
      return testing::AssertionFailure() << "element " << i << " is " << get(actual, i) << ", not " << get(expected, i)
                                         << ": off by " << error << ", " << allowed << " allowed";
    }
  }
  return testing::AssertionSuccess();
}

TEST_F(CudaExpertBias, IsAddedAsOnTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const Case& c : cases_) {
      const int64_t E = std::ssize(c.offsets) - 1, R = static_cast<int64_t>(c.offsets.back()) + 3;
      const Tensor x = normal({R, c.in}, dtype), w = normal({E, c.out, c.in}, dtype, 0.2), values = normal({E, c.out});
      const Tensor weight = normal({R}), offsets = pool_.ints({E + 1}, c.offsets);
      for (const bool weighted : {false, true}) {
        const Tensor expected = pool_.full({R, c.out}, 7.0), y = up(expected, dtype);
        cpu().grouped_linear_forward(
            {.x = x, .w = w, .offsets = offsets, .y = expected, .bias = {values, weighted ? weight : Tensor()}});
        gpu().grouped_linear_forward({.x = up(x, dtype),
                                      .w = up(w, dtype),
                                      .offsets = up(offsets),
                                      .y = y,
                                      .bias = {up(values), weighted ? up(weight) : Tensor()}});
        const Tensor products = pool_.full({R, c.out}, 7.0), sizes = pool_.full({R, c.out}, 7.0);
        cpu().grouped_linear_forward({.x = x, .w = w, .offsets = offsets, .y = products});
        cpu().grouped_linear_forward({.x = sizes_of(x),
                                      .w = sizes_of(w),
                                      .offsets = offsets,
                                      .y = sizes,
                                      .bias = {sizes_of(values), weighted ? sizes_of(weight) : Tensor()}});
        EXPECT_TRUE(within_roundings(dtype, down(y), expected, products, sizes)) << R << " x " << c.out;
      }
    }
  }
}

// Of the contract's order on every device; a product and a sum are one operation there.
TEST_F(CudaExpertBias, BackwardIsThatOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const Case& c : cases_) {
      const int64_t E = std::ssize(c.offsets) - 1, R = static_cast<int64_t>(c.offsets.back()) + 3;
      const Tensor dy = normal({c.tokens, c.out}, dtype), values = normal({E, c.out}), weight = normal({R});
      const Tensor offsets = pool_.ints({E + 1}, c.offsets), index = pool_.random_ints({R}, c.tokens);
      const Tensor dvalues = normal({E, c.out}), drow_weight = normal({R});
      const Tensor device_dvalues = up(dvalues), device_drow_weight = up(drow_weight);
      cpu().expert_bias_backward({.dy = {dy, index},
                                  .offsets = offsets,
                                  .bias = {values, weight},
                                  .dvalues = dvalues,
                                  .drow_weight = drow_weight});
      gpu().expert_bias_backward({.dy = {up(dy, dtype), up(index)},
                                  .offsets = up(offsets),
                                  .bias = {up(values), up(weight)},
                                  .dvalues = device_dvalues,
                                  .drow_weight = device_drow_weight});
      EXPECT_TRUE(near(down(device_dvalues), dvalues, 1e-4)) << R << " x " << c.out;
      EXPECT_TRUE(near(down(device_drow_weight), drow_weight, 1e-4)) << R << " x " << c.out;
    }
  }
}

}  // namespace
}  // namespace nmoe::test
