#include <array>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

constexpr double kEps = 1e-6;
// Two orders of summing D squares in fp32: D^(1/2) rounding errors of 6e-8, with room.
constexpr double kForward = 4e-6;
// Differences of terms of like size, down to a thousandth of them; sums of a thousand terms of either sign.
constexpr double kBackward = 5e-4;

// Rows and widths: heads, models, a warp's rows and a block's, none, odd ones.
constexpr std::pair<int64_t, int64_t> kShapes[] = {{0, 64},   {1, 1},    {3, 7},      {65, 255},  {17, 256},
                                                   {9, 1024}, {5, 1025}, {1000, 768}, {33, 2048}, {5, 7168}};

using CudaRmsNorm = CudaTest;

TEST_F(CudaRmsNorm, ForwardIsThatOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const auto& [rows, width] : kShapes) {
      const Tensor x = normal({rows, width}, dtype), gain = normal({width}, DType::kF32, 0.1, 1.0);
      const Tensor expected = pool_.zeros({rows, width}), expected_rstd = pool_.zeros({rows});
      cpu().rms_norm_forward({x, gain, kEps, expected, expected_rstd});
      const Tensor y = tensors_.allocate(dtype, {rows, width}), rstd = tensors_.allocate(DType::kF32, {rows});
      const Tensor device_x = up(x, dtype);
      gpu().rms_norm_forward({device_x, up(gain), kEps, y, rstd});
      EXPECT_TRUE(near(down(y), expected, tolerance(dtype, kForward))) << rows << " x " << width;
      EXPECT_TRUE(near(down(rstd), expected_rstd, kForward)) << rows << " x " << width;
      gpu().rms_norm_forward({device_x, up(gain), kEps, device_x, rstd});
      EXPECT_TRUE(same_bits(down(device_x), down(y))) << "in place, " << rows << " x " << width;
    }
  }
}

TEST_F(CudaRmsNorm, BackwardIsThatOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const auto& [rows, width] : kShapes) {
      if (width == 1) continue;  // the gradient of x / |x| is nothing but rounding
      for (const bool accumulate : {false, true}) {
        const Tensor x = normal({rows, width}, dtype), dy = normal({rows, width}, dtype);
        const Tensor gain = normal({width}, DType::kF32, 0.1, 1.0), rstd = pool_.zeros({rows});
        const Tensor dx = normal({rows, width}, dtype), dgain = normal({width});
        cpu().rms_norm_forward({x, gain, kEps, pool_.zeros({rows, width}), rstd});
        const Tensor device_dx = up(dx, dtype), device_dgain = up(dgain), device_dy = up(dy, dtype);
        const Tensor device_x = up(x, dtype), device_gain = up(gain), device_rstd = up(rstd);
        const Tensor second_dgain = up(dgain);
        cpu().rms_norm_backward({x, gain, rstd, dy, dx, dgain, accumulate});
        gpu().rms_norm_backward({device_x, device_gain, device_rstd, device_dy, device_dx, device_dgain, accumulate});
        EXPECT_TRUE(near(down(device_dx), dx, tolerance(dtype, kBackward))) << rows << " x " << width;
        EXPECT_TRUE(near(down(device_dgain), dgain, kBackward)) << rows << " x " << width;
        if (accumulate) continue;
        gpu().rms_norm_backward({device_x, device_gain, device_rstd, device_dy, device_dy, second_dgain, false});
        EXPECT_TRUE(same_bits(down(device_dy), down(device_dx))) << "in place, " << rows << " x " << width;
        EXPECT_TRUE(same_bits(down(second_dgain), down(device_dgain))) << rows << " x " << width;
      }
    }
  }
}

// A norm whose gains are centred at 0 is one of gains that are larger by the offset: F32 has 1 + g without rounding for
// the g that follow, so that bits are the same. And of no offset, those of gains of -0.
TEST_F(CudaRmsNorm, OffsetsAreAddedToGains) {
  constexpr std::array<std::array<int64_t, 3>, 4> kSizes{{{65, 1, 255}, {33, 1, 4096}, {20, 5, 40}, {300, 3, 128}}};
  for (const DType dtype : kActDTypes) {
    for (const auto& [tokens, heads, width] : kSizes) {
      SCOPED_TRACE(fmt::format("{} tokens, {} heads of {}, {}", tokens, heads, width, dtype_name(dtype)));
      const Shape shape = heads == 1 ? Shape{tokens, width} : Shape{tokens, heads, width};
      const Tensor centred = normal({width}, DType::kF32, 0.1), gain = pool_.zeros({width});
      for (int64_t i = 0; i < width; ++i) {
        set(centred, i, std::round(get(centred, i) * 0x1p10) * 0x1p-10);
        set(gain, i, get(centred, i) + 1);
      }
      const Tensor x = up(normal(shape, dtype), dtype), dy = up(normal(shape, dtype), dtype);
      const auto run_with = [&](const Tensor& gains, double offset) {
        const Tensor device_gains = up(gains), y = tensors_.allocate(dtype, shape),
                     dx = up(pool_.full(shape, 0.5), dtype);
        const Tensor rstd = tensors_.allocate(DType::kF32, {tokens * heads}), dgain = up(pool_.full({width}, 0.5));
        gpu().rms_norm_forward(
            {.x = x, .gain = device_gains, .eps = kEps, .y = y, .rstd = rstd, .gain_offset = offset});
        std::vector<Tensor> all{down(y)};
        for (const bool accumulate : {false, true}) {
          gpu().rms_norm_backward({.x = x,
                                   .gain = device_gains,
                                   .rstd = rstd,
                                   .dy = dy,
                                   .dx = dx,
                                   .dgain = dgain,
                                   .accumulate_dx = accumulate,
                                   .gain_offset = offset});
          all.push_back(down(dx));
        }
        all.push_back(down(dgain));
        return all;
      };
      const auto with_offset = run_with(centred, 1.0), without = run_with(gain, 0.0);
      for (size_t i = 0; i < without.size(); ++i) EXPECT_TRUE(same_bits(with_offset[i], without[i])) << i;
    }
  }
  const Tensor y = tensors_.allocate(DType::kF32, {1, 2});
  gpu().rms_norm_forward({.x = up(pool_.of({1, 2}, {1, -1})),
                          .gain = up(pool_.of({2}, {-0.0, -0.0})),
                          .eps = kEps,
                          .y = y,
                          .rstd = tensors_.allocate(DType::kF32, {1})});
  EXPECT_TRUE(same_bits(down(y), pool_.of({1, 2}, {-0.0, 0.0})));
}

// Chunks of more rows than the least.
TEST_F(CudaRmsNorm, GainsOfManyRowsAddUp) {
  constexpr int64_t kRows = 50'001, kWidth = 40;
  TensorPool exact(DType::kF64, 7), single(DType::kF32, 7);
  const Tensor x = exact.normal({kRows, kWidth}), dy = exact.normal({kRows, kWidth}), gain = exact.full({kWidth}, 1);
  const Tensor rstd = exact.full({kRows}, 1), dgain = exact.zeros({kWidth});
  cpu(DType::kF64).rms_norm_backward({x, gain, rstd, dy, exact.zeros({kRows, kWidth}), dgain});
  const Tensor device_x = up(single.normal({kRows, kWidth})), device_dy = up(single.normal({kRows, kWidth}));
  const Tensor device_dgain = up(single.zeros({kWidth}));
  gpu().rms_norm_backward(
      {device_x, up(single.full({kWidth}, 1)), up(single.full({kRows}, 1)), device_dy, device_dy, device_dgain, false});
  // 50,000 terms around 1 in short chains, sums around 200: errors of some 1e-6, relative to a thousandth of the
  // largest.
  EXPECT_TRUE(near(down(device_dgain), values(dgain), 5e-4));
}

// Norms of queries' and keys' heads: several turns of a block, numbers of heads that four does not divide, in place.
TEST_F(CudaRmsNorm, HeadsOfManyTokens) {
  constexpr std::array<std::array<int64_t, 3>, 4> kHeads{
      {{5000, 6, 128}, {3000, 1, 64}, {2000, 5, 40}, {9000, 32, 64}}};
  for (const DType dtype : kActDTypes) {
    for (const auto& [tokens, heads, width] : kHeads) {
      SCOPED_TRACE(fmt::format("{} tokens, {} heads of {}, {}", tokens, heads, width, dtype_name(dtype)));
      TensorPool exact(DType::kF64);
      const Tensor x = exact.normal({tokens, heads, width}), dy = exact.normal({tokens, heads, width});
      for (const Tensor& host : {x, dy}) {  // to what the device can hold
        for (double& value : host.span<double>()) {
          const auto single = static_cast<float>(value);
          value = dtype == DType::kBF16 ? bf16_to_float(float_to_bf16(single)) : single;
        }
      }
      const auto up_rounded = [&](Tensor host, DType to) {
        TensorPool single(DType::kF32);
        return up(single.of(host.shape(), values(host)), to);
      };
      const Tensor gain = exact.full({width}, 1.5), rstd = exact.zeros({tokens, heads}), dgain = exact.zeros({width});
      const Tensor dx = exact.zeros(x.shape()), device_x = up_rounded(x, dtype), device_dy = up_rounded(dy, dtype);
      const Tensor device_gain = up_rounded(gain, DType::kF32), device_dx = tensors_.allocate(dtype, x.shape());
      const Tensor device_dgain = up_rounded(dgain, DType::kF32), second_dgain = up_rounded(dgain, DType::kF32);
      cpu(DType::kF64).rms_norm_forward({x, gain, kEps, exact.zeros(x.shape()), rstd});
      const Tensor device_rstd = up_rounded(rstd, DType::kF32);
      cpu(DType::kF64).rms_norm_backward({x, gain, rstd, dy, dx, dgain});
      gpu().rms_norm_backward({device_x, device_gain, device_rstd, device_dy, device_dx, device_dgain, false});
      EXPECT_TRUE(near(down(device_dx), values(dx), tolerance(dtype, kBackward)));
      EXPECT_TRUE(near(down(device_dgain), values(dgain), kBackward));
      gpu().rms_norm_backward({device_x, device_gain, device_rstd, device_dy, device_dy, second_dgain, false});
      EXPECT_TRUE(same_bits(down(device_dy), down(device_dx))) << "in place";
      EXPECT_TRUE(same_bits(down(second_dgain), down(device_dgain)));
    }
  }
}

}  // namespace
}  // namespace nmoe::test
