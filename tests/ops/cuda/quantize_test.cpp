#include "ops/cuda/cuda_test.h"
#include "ops/quantize_cases.h"

namespace nmoe::test {
namespace {

using CudaQuantize = CudaTest;

TEST_F(CudaQuantize, BlocksAreThoseOfTheReference) {
  for (const QuantizeCase& one : read_quantize_cases(pool_)) {
    Quantize args = one.args;
    args.x = up(args.x);
    args.amax = tensors_.allocate(DType::kF32, {1});
    gpu().abs_max({.x = args.x, .amax = args.amax});
    EXPECT_TRUE(same_bits(down(args.amax), one.amax)) << one.name;
    if (args.format != OperandFormat::kNvFp4) args.amax = {};
    args.random.key = up(args.random.key);
    args.values = tensors_.allocate(DType::kU8, args.values.shape());
    args.scales = tensors_.allocate(DType::kU8, args.scales.shape());
    gpu().quantize(args);
    EXPECT_EQ(bytes_of(down(args.values)), one.values) << one.name;
    EXPECT_EQ(bytes_of(down(args.scales)), one.scales) << one.name;
  }
}

// Stacks, ragged rows, short blocks, and both dtypes.
TEST_F(CudaQuantize, IsTheCpu) {
  struct Case {
    OperandFormat format;
    BlockShape blocks;
    Shape shape;
    int64_t rows;  // negative: all
  };
  const Case cases[] = {{OperandFormat::kFp8, BlockShape::kRows, {1, 300, 700}, 211},
                        {OperandFormat::kFp8, BlockShape::kTiles, {3, 200, 384}, -1},
                        {OperandFormat::kMxFp8, BlockShape::kRows, {2, 65, 96}, -1},
                        {OperandFormat::kMxFp8, BlockShape::kRows, {1, 40, 77}, 0},
                        {OperandFormat::kNvFp4, BlockShape::kRows, {1, 90, 133}, 71},
                        {OperandFormat::kNvFp4, BlockShape::kTiles, {4, 50, 49}, -1}};
  for (const DType dtype : kActDTypes) {
    for (const Case& c : cases) {
      const int64_t G = c.shape[0], N = c.shape[1], C = c.shape[2], n = block_size(c.format);
      const int64_t height = c.blocks == BlockShape::kTiles ? n : 1;
      const bool is_nvfp4 = c.format == OperandFormat::kNvFp4;
      const Tensor x = normal(c.shape, dtype, 0.1);
      const Tensor num_rows = c.rows < 0 ? Tensor() : pool_.ints({1}, {static_cast<double>(c.rows)});
      const Shape values({G, N, is_nvfp4 ? (C + 1) / 2 : C}), scales({G, (N + height - 1) / height, (C + n - 1) / n});
      Tensor key;
      if (is_nvfp4 && c.blocks == BlockShape::kRows) {
        key = pool_.zeros(DType::kI64, {1});
        *key.data<int64_t>() = 77;
      }
      const Tensor amax = is_nvfp4 ? pool_.zeros({G}) : Tensor();
      const Quantize host{.format = c.format,
                          .blocks = c.blocks,
                          .x = x,
                          .num_rows = num_rows,
                          .amax = amax,
                          .random = {.key = key, .stream = 5},
                          .values = pool_.zeros(DType::kU8, values),
                          .scales = pool_.zeros(DType::kU8, scales)};
      if (is_nvfp4) cpu().abs_max({.x = x, .num_rows = num_rows, .amax = amax});
      cpu().quantize(host);

      Quantize device = host;
      device.x = up(x, dtype);
      device.num_rows = up(num_rows);
      device.random.key = up(key);
      device.values = up(pool_.zeros(DType::kU8, values));
      device.scales = up(pool_.zeros(DType::kU8, scales));
      if (is_nvfp4) {
        device.amax = tensors_.allocate(DType::kF32, {G});
        gpu().abs_max({.x = device.x, .num_rows = device.num_rows, .amax = device.amax});
        EXPECT_TRUE(same_bits(down(device.amax), amax));
      }
      gpu().quantize(device);
      EXPECT_EQ(bytes_of(down(device.values)), bytes_of(host.values)) << c.shape.to_string();
      EXPECT_EQ(bytes_of(down(device.scales)), bytes_of(host.scales)) << c.shape.to_string();
    }
  }
}

// What cannot be done yet is refused, not done otherwise.
TEST_F(CudaQuantize, ProductsRefuseFormats) {
  const Tensor x = up(normal({8, 32})), w = up(normal({16, 32})), y = tensors_.allocate(DType::kF32, {8, 16});
  EXPECT_THROW(gpu().linear_forward({.x = x, .w = w, .y = y, .rounding = {.format = OperandFormat::kFp8}}),
               CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
