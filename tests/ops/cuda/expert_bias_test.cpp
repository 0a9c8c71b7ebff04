#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

class CudaExpertBias : public CudaTest {
 protected:
  struct Case {
    int64_t tokens, in, out;
    std::vector<double> offsets;
  };
  const std::vector<Case> cases_ = {{3, 8, 8, {0, 0, 2, 2}},
                                    {70, 33, 21, {0, 5, 5, 70, 71}},
                                    {900, 64, 256, {0, 700, 701, 701, 1400}},
                                    {64, 128, 2880, {0, 30, 300}}};
};

// Of products in the same order; a rounding before the bias, and one behind it.
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
        EXPECT_TRUE(near(down(y), expected, dtype == DType::kF32 ? 1e-5 : 4e-2)) << R << " x " << c.out;
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
