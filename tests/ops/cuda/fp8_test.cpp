// Products of FP8 operands on Hopper against the bit model of its tensor cores.
#include <bit>
#include <cmath>

#include "ops/cuda/cuda_test.h"
#include "ops/cuda/fp8_wgmma.h"
#include "ops/cuda/runtime/cuda_ops.h"
#include "ops/cuda/sm90/grouped_fp8.h"
#include "ops/tensor_core_model.h"

namespace nmoe::test {
namespace {

class CudaFp8 : public CudaTest {
 protected:
  // Codes of finite E4M3 numbers: all alike, or those of normal numbers as blocks have them.
  Tensor codes(Shape shape, bool all_alike) {
    const Tensor x = pool_.zeros(DType::kU8, shape);
    const Philox rng(17, next_stream_++);
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      const auto at = static_cast<uint64_t>(i);
      const auto code =
          all_alike ? static_cast<uint8_t>(rng.bits(at)) : float_to_e4m3(100 * static_cast<float>(rng.normal(at)));
      x.data<uint8_t>()[i] = (code & 0x7F) == 0x7F ? uint8_t{0} : code;
    }
    return x;
  }
  Tensor scales(Shape shape, int least) {
    const Tensor x = pool_.zeros(DType::kU8, shape);
    for (int64_t i = 0; i < x.num_elements(); ++i) x.data<uint8_t>()[i] = static_cast<uint8_t>(least + 5 * i % 7);
    return x;
  }
  // Of the last dimension, `count` codes of row `index` from `first` on.
  static std::span<const uint8_t> part(Tensor x, int64_t index, int64_t first, int64_t count) {
    return {x.data<uint8_t>() + index * x.dim(-1) + first, static_cast<size_t>(count)};
  }

 private:
  uint64_t next_stream_ = 0;
};

// 1,000 tiles, of which each row's products with 8 columns are checked.
TEST_F(CudaFp8, WgmmaIsTheBitModel) {
  constexpr int kTiles = 125;
  for (const bool all_alike : {false, true}) {
    for (const int depth : {32, 64, 96, 128}) {
      const Tensor a = codes({kTiles * kFp8TileRows, kFp8TileDepth}, all_alike),
                   b = codes({kTiles * kFp8TileCols, kFp8TileDepth}, all_alike);
      const Tensor device_a = up(a), device_b = up(b),
                   device_c = tensors_.allocate(DType::kF32, {kTiles * kFp8TileRows, kFp8TileCols});
      fp8_wgmma_tiles(device_a.data<uint8_t>(), device_b.data<uint8_t>(), device_c.data<float>(), kTiles, depth,
                      /*stream=*/nullptr);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const Tensor c = down(device_c);
      int64_t num_wrong = 0;
      for (int64_t i = 0; i < c.dim(0); ++i) {
        for (int64_t j = i % 8; j < kFp8TileCols; j += 8) {
          const int64_t column = i / kFp8TileRows * kFp8TileCols + j;
          const float expected = hopper_e4m3_dot(part(a, i, 0, depth), part(b, column, 0, depth));
          const float actual = c.data<float>()[i * kFp8TileCols + j];
          if (std::bit_cast<uint32_t>(actual) == std::bit_cast<uint32_t>(expected)) continue;
          if (++num_wrong <= 3) {
            ADD_FAILURE() << "row " << i << ", column " << j << ": " << actual << ", expected " << expected;
          }
        }
      }
      EXPECT_EQ(num_wrong, 0) << "depth " << depth << ", all codes alike: " << all_alike;
      tensors_.rewind(0);
    }
  }
}

struct GroupedCase {
  std::vector<double> offsets;
  int64_t capacity, width, depth;
};

// Blocks of 128 of k by the model, times their scales, added in fp32, and rounded to BF16. Every value of some rows.
TEST_F(CudaFp8, GroupedProductIsTheBitModel) {
  const GroupedCase cases[] = {{{0, 40}, 40, 128, 128},
                               {{0, 0, 300, 300, 301, 470}, 512, 200, 400},
                               {{0, 257, 513}, 513, 136, 144},
                               {{0, 0, 0}, 16, 8, 16}};
  for (const auto& [bounds, R, N, K] : cases) {
    const int64_t E = std::ssize(bounds) - 1, k_blocks = (K + 127) / 128, col_blocks = (N + 127) / 128;
    const Tensor x = codes({R, K}, false), w = codes({E, N, K}, false), offsets = pool_.ints({E + 1}, bounds);
    const Tensor x_scales = scales({R, k_blocks}, 117), w_scales = scales({E, col_blocks, k_blocks}, 113);
    const Tensor y = tensors_.allocate(DType::kBF16, {R, N});
    gpu().fill({.x = y, .value = 7.0});
    cuda::sm90::grouped_fp8(
        static_cast<cuda::CudaOps&>(gpu()).context(),
        {.x = up(x), .x_scales = up(x_scales), .w = up(w), .w_scales = up(w_scales), .offsets = up(offsets), .y = y});
    const Tensor actual = down(y);
    for (int64_t e = 0; e < E; ++e) {
      const int32_t begin = offsets.data<int32_t>()[e], end = offsets.data<int32_t>()[e + 1];
      for (int64_t row = begin; row < end; row += row % 64 == 63 ? 1 : 21) {
        for (int64_t col = 0; col < N; ++col) {
          float total = 0.0F;
          for (int64_t block = 0; block < k_blocks; ++block) {
            const int64_t first = block * 128, count = std::min<int64_t>(128, K - first);
            const float sum = hopper_e4m3_dot(part(x, row, first, count), part(w, e * N + col, first, count));
            const float scale =
                e8m0_to_float(x_scales.data<uint8_t>()[row * k_blocks + block]) *
                e8m0_to_float(w_scales.data<uint8_t>()[(e * col_blocks + col / 128) * k_blocks + block]);
            total = std::fma(sum, scale, total);
          }
          const float expected = bf16_to_float(float_to_bf16(total));
          ASSERT_EQ(get(actual, row * N + col), static_cast<double>(expected)) << "row " << row << ", column " << col;
        }
      }
    }
    for (int64_t i = offsets.data<int32_t>()[E] * N; i < R * N; ++i) ASSERT_EQ(get(actual, i), 7.0);
    tensors_.rewind(0);
  }
}

// Ratio of signal to noise, in dB.
double ratio(Tensor actual, Tensor exact) {
  double signal = 0, noise = 0;
  for (int64_t i = 0; i < exact.num_elements(); ++i) {
    const double value = get(exact, i), error = get(actual, i) - value;
    signal += value * value;
    noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

// From BF16 to BF16 with this device's quantisers, forward and, with transposed weights, the gradient of inputs: what
// the CPU makes of the same, but for the 14 bits that tensor cores keep of a sum.
TEST_F(CudaFp8, QuantisedProductsAreThoseOfTheCpu) {
  const int64_t E = 3, R = 700, K = 512, N = 384;
  const Tensor x = normal({R, K}, DType::kBF16), w = normal({E, N, K}, DType::kBF16, 0.05),
               offsets = pool_.ints({E + 1}, {0, 500, 517, 690});
  const Tensor num_rows = pool_.ints({1}, {690}), w_t = pool_.zeros({E, K, N});
  for (int64_t i = 0; i < w.num_elements(); ++i) set(w_t, i / (N * K) * N * K + i % K * N + i / K % N, get(w, i));
  const Tensor y = pool_.zeros({R, N});
  cpu().grouped_linear_forward(
      {.x = x, .w = w, .offsets = offsets, .y = y, .rounding = {.format = OperandFormat::kFp8}});
  const auto quantised = [&](Tensor matrices, BlockShape blocks) {
    const int64_t rows = matrices.dim(1), cols = matrices.dim(2);
    const Quantize args{.format = OperandFormat::kFp8,
                        .blocks = blocks,
                        .x = up(matrices, DType::kBF16),
                        .num_rows = blocks == BlockShape::kRows ? up(num_rows) : Tensor(),
                        .values = tensors_.allocate(DType::kU8, matrices.shape()),
                        .scales = tensors_.allocate(
                            DType::kU8, {matrices.dim(0), blocks == BlockShape::kRows ? rows : (rows + 127) / 128,
                                         (cols + 127) / 128})};
    gpu().quantize(args);
    return std::pair{args.values, args.scales};
  };
  const auto product = [&](Tensor rows, Tensor weights) {
    const auto [codes_x, scales_x] = quantised(rows.reshape({1, R, rows.dim(1)}), BlockShape::kRows);
    const auto [codes_w, scales_w] = quantised(weights, BlockShape::kTiles);
    const Tensor result = tensors_.allocate(DType::kBF16, {R, weights.dim(1)});
    gpu().fill({.x = result, .value = 0.0});
    cuda::sm90::grouped_fp8(static_cast<cuda::CudaOps&>(gpu()).context(),
                            {.x = codes_x.reshape({R, rows.dim(1)}),
                             .x_scales = scales_x.reshape({R, scales_x.dim(2)}),
                             .w = codes_w,
                             .w_scales = scales_w,
                             .offsets = up(offsets),
                             .y = result});
    return down(result);
  };
  // BF16's rounding alone leaves 53 dB; sums that keep 13 bits some 60.
  EXPECT_GT(ratio(product(x, w).rows(0, 690), y.rows(0, 690)), 50);
  const Tensor dy = normal({R, N}, DType::kBF16, 1e-3), dx = pool_.zeros({R, K});
  cpu().grouped_linear_backward_input(
      {.dy = dy, .w = w, .offsets = offsets, .dx = dx, .rounding = {.format = OperandFormat::kFp8}});
  EXPECT_GT(ratio(product(dy, w_t).rows(0, 690), dx.rows(0, 690)), 50);
}

}  // namespace
}  // namespace nmoe::test
