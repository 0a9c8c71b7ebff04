#include <array>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

using CudaBias = CudaTest;

constexpr std::pair<int64_t, int64_t> kBiasShapes[] = {{0, 64},   {1, 1},    {3, 7},       {65, 255},
                                                       {17, 256}, {9, 5120}, {1000, 1536}, {5, 7168}};

// One rounding on each side, of the same sum.
TEST_F(CudaBias, ForwardIsThatOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const auto& [rows, width] : kBiasShapes) {
      const Tensor x = normal({rows, width}, dtype), bias = normal({width});
      const Tensor expected = pool_.zeros({rows, width}), y = tensors_.allocate(dtype, {rows, width});
      const Tensor device_x = up(x, dtype), device_bias = up(bias);
      cpu().bias_forward({x, bias, expected});
      gpu().bias_forward({device_x, device_bias, y});
      EXPECT_TRUE(near(down(y), expected, tolerance(dtype, 0.0))) << rows << " x " << width;
      gpu().bias_forward({device_x, device_bias, device_x});
      EXPECT_TRUE(same_bits(down(device_x), down(y))) << "in place, " << rows << " x " << width;
      cpu().bias_forward({{}, bias, expected});
      gpu().bias_forward({{}, device_bias, y});
      EXPECT_TRUE(near(down(y), expected, tolerance(dtype, 0.0))) << "alone, " << rows << " x " << width;
    }
  }
}

// The contract's order is that of every device, so the bits are the CPU's.
TEST_F(CudaBias, BackwardHasTheBitsOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const auto& [rows, width] : kBiasShapes) {
      const Tensor dy = normal({rows, width}, dtype), dbias = normal({width}), device_dbias = up(dbias);
      cpu().bias_backward({dy, dbias});
      gpu().bias_backward({up(dy, dtype), device_dbias});
      EXPECT_TRUE(same_bits(down(device_dbias), dbias)) << rows << " x " << width;
    }
  }
}

}  // namespace
}  // namespace nmoe::test
