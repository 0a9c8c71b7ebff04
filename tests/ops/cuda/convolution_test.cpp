// Recurrent layers' convolution and gated norm: against the CPU, on whole and cut rows, and generation against
// training.
#include <array>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

class CudaConvolution : public CudaTest {
 protected:
  // Forward and backward on both devices, of tensors that lie apart where they may.
  void compare(DType dtype, int64_t num_seqs, int64_t seq_len, int64_t width, int64_t taps,
               const std::vector<double>& bounds, bool goes_on, bool has_bias = true) {
    const int64_t T = num_seqs * seq_len;
    const Shape rows{T, width}, boundary{num_seqs, taps - 1, width};
    ConvolutionInputs in{.num_seqs = num_seqs,
                         .seq_len = seq_len,
                         .x = normal(rows, dtype),
                         .weight = normal({width, taps}),
                         .bias = has_bias ? normal({width}) : Tensor()};
    ConvolutionInputs there = in;
    there.x = up(in.x, dtype), there.weight = up(in.weight), there.bias = up(in.bias);
    if (!bounds.empty()) {
      in.cu_seqlens = pool_.ints({static_cast<int64_t>(bounds.size())}, bounds);
      there.cu_seqlens = up(in.cu_seqlens);
    }
    const Tensor dy = normal(rows, dtype);
    Tensor dafter, device_dafter, after, device_after, dbefore, device_dbefore;
    if (goes_on) {
      in.before = normal(boundary, dtype), there.before = up(in.before, dtype);
      dafter = normal(boundary, dtype), device_dafter = up(dafter, dtype);
      after = pool_.zeros(boundary), device_after = tensors_.allocate(dtype, boundary);
      dbefore = pool_.zeros(boundary), device_dbefore = tensors_.allocate(dtype, boundary);
    }
    const Tensor y = pool_.zeros(rows), device_y = tensors_.allocate(dtype, rows);
    const Tensor dx = pool_.zeros(rows), device_dx = tensors_.allocate(dtype, rows);
    const Tensor dweight = normal({width, taps}), device_dweight = up(dweight);
    const Tensor dbias = has_bias ? normal({width}) : Tensor(), device_dbias = up(dbias);
    cpu().convolution_forward({in, y, after});
    cpu().convolution_backward({in, dy, dafter, dx, dweight, dbias, dbefore});
    gpu().convolution_forward({there, device_y, device_after});
    gpu().convolution_backward(
        {there, up(dy, dtype), device_dafter, device_dx, device_dweight, device_dbias, device_dbefore});
    EXPECT_LE(worst_error(down(device_y), y), dtype == DType::kBF16 ? 1e-2 : 1e-5);
    EXPECT_LE(worst_error(down(device_dx), dx), dtype == DType::kBF16 ? 1e-2 : 1e-5);
    const double of_sums = dtype == DType::kBF16 ? 1e-3 : 1e-5;  // sigmoids of BF16 are approximate
    EXPECT_LE(worst_error(down(device_dweight), dweight), of_sums);
    if (has_bias) {
      EXPECT_LE(worst_error(down(device_dbias), dbias), of_sums);
    }
    if (!goes_on) return;
    EXPECT_TRUE(same_bits(down(device_after), after));
    EXPECT_LE(worst_error(down(device_dbefore), dbefore), dtype == DType::kBF16 ? 1e-2 : 1e-5);
  }
};

TEST_F(CudaConvolution, IsThatOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const int64_t width : {7, 64, 1000}) {
      for (const int64_t taps : {2, 3, 4}) {
        SCOPED_TRACE(fmt::format("{} {} channels, {} taps", dtype_name(dtype), width, taps));
        compare(dtype, 2, 70, width, taps, {}, false);
        compare(dtype, 3, 2, width, taps, {}, true);
      }
      SCOPED_TRACE(fmt::format("{} {} channels", dtype_name(dtype), width));
      compare(dtype, 2, 300, width, 4, {0, 1, 64, 255, 257, 300, 300, 301, 450, 600, 600}, true);
      compare(dtype, 1, 1, width, 4, {}, true);
      compare(dtype, 2, 300, width, 4, {0, 1, 64, 255, 257, 300, 300, 301, 450, 600, 600}, true, /*has_bias=*/false);
    }
  }
}

// What one document has is nowhere in the next, though they share blocks.
TEST_F(CudaConvolution, DocumentsDoNotTouch) {
  constexpr int64_t kTokens = 600, kWidth = 64, kCut = 270;
  const Tensor bounds = up(pool_.ints({3}, {0, kCut, kTokens}));
  const Tensor weight = up(normal({kWidth, 4})), bias = up(normal({kWidth}));
  const Tensor x = normal({kTokens, kWidth}), dy = normal({kTokens, kWidth});
  const auto run = [&](double poison) {
    for (const Tensor& rows : {x, dy}) {
      for (int64_t i = 0; i < kCut * kWidth; ++i) set(rows, i, poison);
    }
    const ConvolutionInputs in{
        .num_seqs = 1, .seq_len = kTokens, .x = up(x), .weight = weight, .bias = bias, .cu_seqlens = bounds};
    const Tensor y = tensors_.allocate(DType::kF32, {kTokens, kWidth});
    const Tensor dx = tensors_.allocate(DType::kF32, {kTokens, kWidth});
    gpu().convolution_forward({in, y});
    gpu().convolution_backward({.in = in,
                                .dy = up(dy),
                                .dx = dx,
                                .dweight = up(pool_.zeros({kWidth, 4})),
                                .dbias = up(pool_.zeros({kWidth}))});
    return std::array{down(y.rows(kCut, kTokens)), down(dx.rows(kCut, kTokens))};
  };
  const auto quiet = run(0.5), loud = run(std::nan(""));
  for (size_t i = 0; i < quiet.size(); ++i) EXPECT_TRUE(same_bits(quiet[i], loud[i]));
}

// However many rows a pass has, and of however many sequences.
TEST_F(CudaConvolution, CachedRowsHaveTheBitsOfForward) {
  constexpr int64_t kTokens = 12, kWidth = 72;
  for (const auto& [dtype, has_bias] : {std::pair{DType::kF32, true}, {DType::kBF16, true}, {DType::kBF16, false}}) {
    const Tensor x = up(normal({kTokens, kWidth}, dtype), dtype), weight = up(normal({kWidth, 4}));
    const Tensor bias = has_bias ? up(normal({kWidth})) : Tensor(), y = tensors_.allocate(dtype, {kTokens, kWidth});
    gpu().convolution_forward(
        {.in = {.num_seqs = 1, .seq_len = kTokens, .x = x, .weight = weight, .bias = bias}, .y = y});
    const Tensor kept = up(pool_.full({3, 3, kWidth}, std::nan("")), dtype);
    for (int64_t done = 0, count = 1; done < kTokens; done += count, count = std::min(count + 1, kTokens - done)) {
      // The same sequence in two slots, row by row, and a row of none behind them.
      std::vector<double> slots, positions;
      const Tensor rows = tensors_.allocate(dtype, {2 * count + 1, kWidth});
      const auto put = [&](int64_t from, double slot, int64_t at) {
        gpu().copy({.source = x.rows(from, from + 1), .destination = rows.rows(at, at + 1)});
        slots.push_back(slot);
        positions.push_back(static_cast<double>(from));
      };
      for (int64_t t = 0; t < count; ++t) {
        put(done + t, 2, 2 * t);
        put(done + t, 0, 2 * t + 1);
      }
      put(0, -1, 2 * count);
      const int64_t N = 2 * count + 1;
      const Tensor out = tensors_.allocate(dtype, {N, kWidth});
      gpu().cached_convolution({.x = rows,
                                .weight = weight,
                                .bias = bias,
                                .slots = up(pool_.ints({N}, slots)),
                                .positions = up(pool_.ints({N}, positions)),
                                .rows = kept,
                                .y = out});
      for (int64_t t = 0; t < count; ++t) {
        const Tensor expected = down(y.rows(done + t, done + t + 1));
        for (int64_t copy = 0; copy < 2; ++copy) {
          EXPECT_TRUE(same_bits(down(out.rows(2 * t + copy, 2 * t + copy + 1)), expected)) << done + t;
        }
      }
      EXPECT_EQ(values(down(out.rows(2 * count, N))), std::vector<double>(kWidth, 0.0));
    }
  }
}

using CudaGatedNorm = CudaTest;

TEST_F(CudaGatedNorm, IsThatOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const auto& [rows, size, groups] :
         {std::array<int64_t, 3>{1, 4, 3}, {33, 64, 2}, {70, 1024, 4}, {5, 2050, 1}, {9, 8192, 1}}) {
      SCOPED_TRACE(fmt::format("{} {} rows, {} groups of {}", dtype_name(dtype), rows, groups, size));
      const Shape shape{rows, groups * size};
      const Tensor x = normal(shape, dtype), z = normal(shape, dtype), gain = normal({groups * size});
      const Tensor dy = normal(shape, dtype);
      const Tensor y = pool_.zeros(shape), rstd = pool_.zeros({rows, groups}), dx = pool_.zeros(shape);
      const Tensor dz = pool_.zeros(shape), dgain = normal({groups * size});
      const Tensor device_x = up(x, dtype), device_z = up(z, dtype), device_gain = up(gain), device_dgain = up(dgain);
      const Tensor device_y = tensors_.allocate(dtype, shape), device_dz = tensors_.allocate(dtype, shape);
      const Tensor device_rstd = tensors_.allocate(DType::kF32, {rows, groups}), device_dy = up(dy, dtype);
      cpu().gated_norm_forward({x, z, gain, groups, 1e-5, y, rstd});
      cpu().gated_norm_backward({x, z, gain, rstd, dy, dx, dz, dgain});
      gpu().gated_norm_forward({device_x, device_z, device_gain, groups, 1e-5, device_y, device_rstd});
      gpu().gated_norm_backward(
          {device_x, device_z, device_gain, device_rstd, device_dy, device_dy, device_dz, device_dgain});
      EXPECT_LE(worst_error(down(device_y), y), dtype == DType::kBF16 ? 1e-2 : 1e-5);
      EXPECT_LE(worst_error(down(device_rstd), rstd), dtype == DType::kBF16 ? 1e-3 : 1e-6);
      EXPECT_LE(worst_error(down(device_dy), dx), dtype == DType::kBF16 ? 1e-2 : 1e-5);
      EXPECT_LE(worst_error(down(device_dz), dz), dtype == DType::kBF16 ? 1e-2 : 1e-5);
      EXPECT_LE(worst_error(down(device_dgain), dgain), dtype == DType::kBF16 ? 1e-3 : 1e-5);
    }
  }
}

}  // namespace
}  // namespace nmoe::test
