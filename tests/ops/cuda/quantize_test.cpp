#include <cmath>

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

// Every number of BF16, by size and in no order: with NaN, infinities, subnormals, zeros of both signs and ties.
TEST_F(CudaQuantize, AllOfBf16IsTheCpu) {
  for (const uint32_t stride : {1U, 40503U}) {
    const Tensor x = pool_.zeros({1, 128, 512});
    for (uint32_t i = 0; i < 65536; ++i) x.data<float>()[i] = bf16_to_float(static_cast<uint16_t>(i * stride));
    const Tensor device_x = up(x, DType::kBF16);
    for (const BlockShape blocks : {BlockShape::kRows, BlockShape::kTiles}) {
      const Shape scales = blocks == BlockShape::kRows ? Shape({1, 128, 4}) : Shape({1, 1, 4});
      const Quantize host{.format = OperandFormat::kFp8,
                          .blocks = blocks,
                          .x = x,
                          .values = pool_.zeros(DType::kU8, {1, 128, 512}),
                          .scales = pool_.zeros(DType::kU8, scales)};
      cpu().quantize(host);
      Quantize device = host;
      device.x = device_x;
      device.values = tensors_.allocate(DType::kU8, host.values.shape());
      device.scales = tensors_.allocate(DType::kU8, scales);
      gpu().quantize(device);
      EXPECT_EQ(bytes_of(down(device.values)), bytes_of(host.values)) << stride;
      EXPECT_EQ(bytes_of(down(device.scales)), bytes_of(host.scales)) << stride;
    }
  }
}

// All codes of a normal value under every scale whose values BF16 has, and under the one that is none.
TEST_F(CudaQuantize, WidenedRowsAreThoseOfTheCpu) {
  for (const int64_t width : {256, 131}) {
    const RowCodes codes{.values = pool_.zeros(DType::kU8, {256, width}), .scales = pool_.zeros(DType::kU8, {256, 2})};
    for (int64_t row = 0; row < 256; ++row) {
      for (int64_t i = 0; i < width; ++i) codes.values.data<uint8_t>()[row * width + i] = static_cast<uint8_t>(i + row);
      for (int64_t i = 0; i < 2; ++i) codes.scales.data<uint8_t>()[2 * row + i] = static_cast<uint8_t>(row + i);
    }
    for (const DType act : kActDTypes) {
      const Tensor expected = pool_.zeros({256, width}), x = up(pool_.full({256, width}, 9.0), act);
      gpu().widen_rows({.codes = {.values = up(codes.values), .scales = up(codes.scales)}, .x = x});
      cpu().widen_rows({.codes = codes, .x = expected});
      const Tensor got = down(x);
      for (int64_t row = 0; row < 256; ++row) {
        for (int64_t i = 0; i < width; ++i) {
          const double want = get(expected[row], i), value = get(got[row], i);
          if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(value)) << "row " << row << ", " << i;
          } else if (act == DType::kF32 || std::abs(want) >= 0x1p-120) {
            ASSERT_EQ(value, want) << "row " << row << ", " << i << ", " << dtype_name(act);
          }
        }
      }
    }
  }
}

TEST_F(CudaQuantize, TransposedTilesAreThoseOfTheCpu) {
  for (const Shape& shape : {Shape({3, 144, 208}), Shape({1, 256, 128}), Shape({2, 16, 400}), Shape({8, 144, 208})}) {
    const int64_t G = shape[0], N = shape[1], C = shape[2], down_tiles = (N + 127) / 128, across = (C + 127) / 128;
    const Tensor x = normal(shape, DType::kBF16, 0.1);
    if (G == 8) set_specials(x.reshape({G, N * C}));  // a matrix of each kind
    const Quantize host{.format = OperandFormat::kFp8,
                        .blocks = BlockShape::kTiles,
                        .x = rounded(x, DType::kBF16),
                        .values = pool_.zeros(DType::kU8, shape),
                        .scales = pool_.zeros(DType::kU8, {G, down_tiles, across}),
                        .transposed_values = pool_.zeros(DType::kU8, {G, C, N}),
                        .transposed_scales = pool_.zeros(DType::kU8, {G, across, down_tiles})};
    cpu().quantize(host);
    const Quantize device{.format = host.format,
                          .blocks = host.blocks,
                          .x = up(host.x, DType::kBF16),
                          .values = up(pool_.zeros(DType::kU8, shape)),
                          .scales = up(pool_.zeros(DType::kU8, host.scales.shape())),
                          .transposed_values = up(pool_.zeros(DType::kU8, {G, C, N})),
                          .transposed_scales = up(pool_.zeros(DType::kU8, host.transposed_scales.shape()))};
    gpu().quantize(device);
    EXPECT_EQ(bytes_of(down(device.values)), bytes_of(host.values)) << shape.to_string();
    EXPECT_EQ(bytes_of(down(device.scales)), bytes_of(host.scales)) << shape.to_string();
    EXPECT_EQ(bytes_of(down(device.transposed_values)), bytes_of(host.transposed_values)) << shape.to_string();
    EXPECT_EQ(bytes_of(down(device.transposed_scales)), bytes_of(host.transposed_scales)) << shape.to_string();
  }
}

// Counts are the CPU's; sums within a row of a block have another order, which may change the last bit of a ratio.
TEST_F(CudaQuantize, WhatRoundingLosesIsWhatTheCpuSays) {
  struct Case {
    OperandFormat format;
    BlockShape blocks;
    Shape shape;
    int64_t rows;  // of four experts, one of them without; negative: all
    bool picked = false;
  };
  const Case cases[] = {{OperandFormat::kFp8, BlockShape::kRows, {1, 300, 700}, 211},
                        {OperandFormat::kFp8, BlockShape::kTiles, {3, 200, 384}, -1},
                        {OperandFormat::kMxFp8, BlockShape::kRows, {2, 65, 96}, -1},
                        {OperandFormat::kMxFp8, BlockShape::kRows, {1, 40, 77}, 0},
                        {OperandFormat::kNvFp4, BlockShape::kRows, {1, 90, 133}, 71},
                        {OperandFormat::kNvFp4, BlockShape::kTiles, {4, 50, 49}, -1},
                        {OperandFormat::kNvFp4, BlockShape::kRows, {1, 90, 136}, 86, true},
                        {OperandFormat::kMxFp8, BlockShape::kRows, {1, 90, 136}, 90, true},
                        {OperandFormat::kNvFp4, BlockShape::kRows, {1, 4096, 256}, 4000, true},
                        {OperandFormat::kFp8, BlockShape::kRows, {1, 4096, 2048}, 4000}};
  for (const DType dtype : kActDTypes) {
    for (const Case& c : cases) {
      const Tensor x = normal(c.shape, dtype, 0.1);
      for (int64_t i = 0; i < x.num_elements(); i += 97) set(x, i, i % 2 == 0 ? 0.0 : std::ldexp(1.0, 9));
      for (int64_t i = 0; c.rows > 0 && i < c.shape[2]; ++i) set(x, i, std::ldexp(get(x, i), 6));  // of one expert
      const auto third = static_cast<double>(c.rows / 3), rows = static_cast<double>(c.rows);
      std::vector<double> picks;
      for (int64_t i = 0; i < c.shape[1]; ++i) picks.push_back(static_cast<double>(i * 7 % c.shape[1]));
      const Tensor index = c.picked ? pool_.ints({c.shape[1]}, picks) : Tensor();
      const Tensor offsets = c.rows < 0 ? Tensor() : pool_.ints({5}, {0, third, third, 2 * third, rows});
      const Tensor counts = pool_.zeros(DType::kF64, {5});
      cpu().measure_rounding(
          {.format = c.format, .blocks = c.blocks, .x = x, .offsets = offsets, .index = index, .counts = counts});
      const Tensor device_x = up(x, dtype), device_offsets = up(offsets), device_index = up(index);
      const Tensor device_counts = up(pool_.zeros(DType::kF64, {5}));
      const auto measured = [&] {
        run([&](Ops& ops) {
          ops.measure_rounding({.format = c.format,
                                .blocks = c.blocks,
                                .x = device_x,
                                .offsets = device_offsets,
                                .index = device_index,
                                .counts = device_counts});
        });
        const Tensor found = down(device_counts);
        const auto values = found.span<double>();
        return std::vector<double>(values.begin(), values.end());
      };
      const std::vector<double> first = measured(), both = measured();
      for (size_t i = 0; i < 5; ++i) EXPECT_EQ(both[i], 2 * first[i]);  // added, and again to the bit
      for (size_t i = 0; i < 4; ++i) EXPECT_EQ(first[i], counts.data<double>()[i]) << c.shape.to_string() << " " << i;
      const double lost = counts.data<double>()[4];
      EXPECT_NEAR(first[4], lost, 1e-6 * lost) << c.shape.to_string();
      EXPECT_EQ(first[4], std::rint(first[4]));
      tensors_.rewind(0);
    }
  }
}

// Both sum up in fp64; the order of sums may change the last bit of a ratio.
TEST_F(CudaQuantize, WhatRoundingLosesOfAProductIsWhatTheCpuSays) {
  struct Case {
    int64_t experts, rows, out, in;
    bool picked;
  };
  for (const Case& c : {Case{1, 300, 200, 144, false},
                        {1, 40, 16, 32, false},
                        {1, 5, 48, 2048, false},
                        {6, 500, 96, 384, false},
                        {6, 500, 384, 96, true},
                        {1, 77, 33, 19, false}}) {
    for (const OperandFormat format : {OperandFormat::kFp8, OperandFormat::kMxFp8, OperandFormat::kNvFp4}) {
      for (const DType dtype : kActDTypes) {
        for (const bool over_out : {false, true}) {
          const int64_t depth = over_out ? c.out : c.in;
          const Tensor x = normal({c.rows, depth}, dtype), w = normal({c.experts, c.out, c.in}, dtype, 0.02);
          for (int64_t i = 0; i < x.num_elements(); i += 97) set(x, i, i % 2 == 0 ? 0.0 : std::ldexp(1.0, 9));
          std::vector<double> picks, ends = {0};
          for (int64_t i = 0; i < c.rows; ++i) picks.push_back(static_cast<double>(i * 13 % c.rows));
          for (int64_t e = 0; e < c.experts; ++e) {  // some without rows, and rows that are not there
            ends.push_back(e % 3 == 1 ? ends.back() : static_cast<double>((e + 1) * c.rows / (c.experts + 1)));
          }
          const Tensor index = c.picked ? pool_.ints({c.rows}, picks) : Tensor();
          const Tensor offsets = c.experts > 1 ? pool_.ints({c.experts + 1}, ends) : Tensor();
          const Tensor counts = pool_.zeros(DType::kF64, {5});
          cpu().measure_product(
              {.format = format, .x = {x, index}, .w = w, .over_out = over_out, .offsets = offsets, .counts = counts});
          const Tensor device_counts = up(pool_.zeros(DType::kF64, {5}));
          const MeasureProduct device{.format = format,
                                      .x = {up(x, dtype), up(index)},
                                      .w = up(w, dtype),
                                      .over_out = over_out,
                                      .offsets = up(offsets),
                                      .counts = device_counts};
          run([&](Ops& ops) { ops.measure_product(device); });
          const Tensor found = down(device_counts);
          const double *expected = counts.data<double>(), *actual = found.data<double>();
          EXPECT_GT(expected[3], 0);
          for (size_t i = 0; i < 4; ++i) EXPECT_EQ(actual[i], expected[i]) << i;
          EXPECT_NEAR(actual[4], expected[4], 1e-6 * expected[4])
              << c.rows << " " << c.out << " " << c.in << " " << static_cast<int>(format) << over_out;
          tensors_.rewind(0);
        }
      }
    }
  }
}

// What cannot be done yet is refused, not done otherwise.
TEST_F(CudaQuantize, ProductsRefuseWhatTheyDoNotRound) {
  EXPECT_EQ(gpu().weight_rounding(OperandFormat::kNvFp4), WeightRounding::kInside);
  const Tensor x = up(normal({8, 32})), w = up(normal({16, 32})), y = tensors_.allocate(DType::kF32, {8, 16});
  EXPECT_THROW(gpu().linear_forward({.x = x, .w = w, .y = y, .rounding = {.format = OperandFormat::kFp8}}),
               CheckFailure);
}

}  // namespace
}  // namespace nmoe::test
