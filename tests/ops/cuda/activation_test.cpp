#include "ops/cuda/kernels/activation.h"

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

// A few fp32 roundings, and exponentials of two libraries.
constexpr double kForward = 4e-6;
// 1 - s, and sums over the width of terms of either sign.
constexpr double kBackward = 5e-4;

constexpr std::pair<int64_t, int64_t> kShapes[] = {{0, 8},     {1, 1},     {3, 7},      {70, 24},
                                                   {33, 1024}, {17, 1031}, {100, 1408}, {4, 5632}};

using CudaActivation = CudaTest;

TEST_F(CudaActivation, BothDirectionsAreThoseOfTheCpu) {
  auto ctx = context();
  const auto cpu = cpu_backend(DType::kF32);
  for (const DType dtype : kActDTypes) {
    for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
      for (const auto& [rows, width] : kShapes) {
        for (const bool weighted : {false, true}) {
          const int64_t pre_width = kind == Activation::kSwiGlu ? 2 * width : width;
          const Tensor pre = normal({rows, pre_width}, dtype, 2.0), dh = normal({rows, width}, dtype);
          const Tensor weight = weighted ? normal({rows}) : Tensor(),
                       dweight = weighted ? pool_.zeros({rows}) : Tensor();
          const Tensor h = pool_.zeros({rows, width}), dpre = pool_.zeros({rows, pre_width});
          cpu->activation_forward(kind, pre, weight, h);
          cpu->activation_backward(kind, pre, weight, dh, dpre, dweight);

          const Tensor device_pre = up(pre, dtype), device_weight = up(weight), device_dh = up(dh, dtype);
          const Tensor device_h = tensors_.allocate(dtype, h.shape()),
                       device_dpre = tensors_.allocate(dtype, pre.shape());
          const Tensor device_dweight = weighted ? tensors_.allocate(DType::kF32, {rows}) : Tensor();
          cuda::activation_forward(ctx, kind, device_pre, device_weight, device_h);
          EXPECT_TRUE(near(down(device_h), h, tolerance(dtype, kForward))) << rows << " x " << width;
          cuda::activation_backward(ctx, kind, device_pre, device_weight, device_dh, device_dpre, device_dweight);
          EXPECT_TRUE(near(down(device_dpre), dpre, tolerance(dtype, kBackward))) << rows << " x " << width;
          if (weighted) {
            EXPECT_TRUE(near(down(device_dweight), dweight, kBackward)) << rows << " x " << width;
          }
          cuda::activation_backward(ctx, kind, device_pre, device_weight, device_dh, device_pre, device_dweight);
          EXPECT_TRUE(same_bits(down(device_pre), down(device_dpre))) << "in place, " << rows << " x " << width;
        }
      }
    }
  }
}

TEST_F(CudaActivation, ExtremesStayFiniteAndNansShow) {
  auto ctx = context();
  const Tensor pre = up(pool_.of({4, 2}, {1000, 1, -1000, 1, -1e30, 2, std::nan(""), 1}));
  const Tensor h = up(pool_.zeros({4, 1})), dpre = up(pool_.zeros({4, 2}));
  cuda::activation_forward(ctx, Activation::kSwiGlu, pre, {}, h);
  cuda::activation_backward(ctx, Activation::kSwiGlu, pre, {}, up(pool_.full({4, 1}, 1)), dpre, {});
  EXPECT_EQ(get(down(h), 0), 1000);
  EXPECT_EQ(get(down(h), 1), 0);
  EXPECT_EQ(get(down(h), 2), 0);
  EXPECT_TRUE(std::isnan(get(down(h), 3)));
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(std::isfinite(get(down(dpre), i))) << i;
  const Tensor nan = up(pool_.of({1, 1}, {std::nan("")})), out = up(pool_.zeros({1, 1}));
  cuda::activation_forward(ctx, Activation::kReluSquared, nan, {}, out);
  EXPECT_TRUE(std::isnan(get(down(out), 0)));
}

}  // namespace
}  // namespace nmoe::test
