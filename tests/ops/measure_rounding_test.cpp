#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/quantize_cases.h"
#include "tensor/low_precision.h"

namespace nmoe::test {
namespace {

class MeasureRoundingTest : public ::testing::Test {
 protected:
  std::vector<double> measure(OperandFormat format, const Tensor& x, BlockShape blocks = BlockShape::kRows,
                              const Tensor& offsets = {}, const Tensor& index = {}) {
    const Tensor counts = Tensor(pool_.zeros(DType::kF64, {5}));
    ops_->measure_rounding(
        {.format = format, .blocks = blocks, .x = x, .offsets = offsets, .index = index, .counts = counts});
    const auto all = counts.span<double>();
    return {all.begin(), all.end()};
  }
  static double snr_db(const std::vector<double>& counts) {
    return -10 * std::log10(counts[4] * kLostUnit / counts[3]);
  }

  TensorPool pool_{DType::kF32};
  ReadyDevice ops_ = cpu_device(DType::kF32);
};

// Against what Quantize writes, widened and counted value by value.
TEST_F(MeasureRoundingTest, CountsWhatQuantizeLoses) {
  struct Case {
    OperandFormat format;
    BlockShape blocks;
  };
  for (const auto& [format, blocks] : {Case{OperandFormat::kFp8, BlockShape::kRows},
                                       {OperandFormat::kFp8, BlockShape::kTiles},
                                       {OperandFormat::kMxFp8, BlockShape::kRows},
                                       {OperandFormat::kNvFp4, BlockShape::kRows},
                                       {OperandFormat::kNvFp4, BlockShape::kTiles}}) {
    constexpr int64_t G = 2, N = 37, C = 150;
    const Tensor x = pool_.normal({G, N, C});
    for (int64_t i = 0; i < G * N * C; ++i) {
      set(x, i, i % 7 == 0 ? 0.0 : get(x, i) * std::exp2(static_cast<double>(i % 31 - 15)));
    }
    const int64_t n = block_size(format), across = (C + n - 1) / n, height = blocks == BlockShape::kTiles ? n : 1;
    const bool is_nvfp4 = format == OperandFormat::kNvFp4;
    const Tensor amax = pool_.zeros({G}), values = pool_.zeros(DType::kU8, {G, N, is_nvfp4 ? (C + 1) / 2 : C}),
                 scales = pool_.zeros(DType::kU8, {G, (N + height - 1) / height, across});
    ops_->abs_max({.x = x, .amax = amax});
    ops_->quantize({.format = format,
                    .blocks = blocks,
                    .x = x,
                    .amax = is_nvfp4 ? amax : Tensor(),
                    .values = values,
                    .scales = scales});
    std::vector<double> expected(5);
    for (int64_t row = 0; row < G * N; ++row) {
      for (int64_t b = 0; b < across; ++b) {
        const int64_t first = row * C + b * n, count = std::min(n, C - b * n);
        const uint8_t scale = scales.data<uint8_t>()[(row / N * scales.dim(1) + row % N / height) * across + b];
        const double tensor_scale = 1.0F / nvfp4_tensor_factor(static_cast<float>(get(amax, row / N)));
        int64_t largest = first;
        for (int64_t i = first; i < first + count; ++i) {
          if (std::abs(get(x, i)) > std::abs(get(x, largest))) largest = i;
        }
        double signal = 0, noise = 0;
        for (int64_t i = first; i < first + count; ++i) {
          if (get(x, i) == 0) continue;
          const int64_t j = i - row * C;
          const uint8_t code = is_nvfp4 ? values.data<uint8_t>()[row * values.dim(2) + j / 2] >> (j % 2 * 4) & 15
                                        : values.data<uint8_t>()[row * C + j];
          const double rounded = is_nvfp4
                                     ? e2m1_to_float(code) * static_cast<double>(e4m3_to_float(scale)) * tensor_scale
                                     : e4m3_to_float(code) * static_cast<double>(e8m0_to_float(scale));
          expected[0] += 1;
          expected[1] += rounded == 0 ? 1 : 0;
          if (i == largest) continue;
          signal += get(x, i) * get(x, i);
          noise += (rounded - get(x, i)) * (rounded - get(x, i));
        }
        if (signal == 0) continue;
        expected[3] += 1;
        expected[4] += std::min(1.0, noise / signal) / kLostUnit;
      }
    }
    const std::vector<double> counts = measure(format, x, blocks);
    EXPECT_EQ(counts[0], expected[0]);
    EXPECT_EQ(counts[1], expected[1]);
    EXPECT_EQ(counts[3], expected[3]);
    EXPECT_NEAR(counts[4], expected[4], 1e-5 * expected[4]);
    EXPECT_EQ(counts[4], std::rint(counts[4]));  // whole, so that sums have no order
    EXPECT_EQ(counts[2] > 0, is_nvfp4);          // scales of powers of two are rounded up
  }
}

// What formats leave of normal values, and what an outlier does to its block; its own error does not count.
TEST_F(MeasureRoundingTest, AnOutlierCostsItsBlock) {
  const Tensor x = pool_.normal({1, 64, 256});
  EXPECT_NEAR(snr_db(measure(OperandFormat::kFp8, x)), 31.5, 0.3);
  EXPECT_NEAR(snr_db(measure(OperandFormat::kMxFp8, x)), 31.5, 0.3);
  EXPECT_NEAR(snr_db(measure(OperandFormat::kNvFp4, x)), 19.1, 0.4);
  set(x, 5, 0x1p30);
  const std::vector<double> rows = measure(OperandFormat::kFp8, x),
                            tiles = measure(OperandFormat::kFp8, x, BlockShape::kTiles);
  EXPECT_EQ(rows[1], 127);  // the rest of its row's block
  EXPECT_NEAR(snr_db(rows), -10 * std::log10(1.0 / 128), 0.5);
  EXPECT_EQ(tiles[1], 64 * 128 - 1);  // and in tiles that of all rows
  EXPECT_NEAR(snr_db(tiles), 3.0, 0.1);
  EXPECT_NEAR(snr_db(measure(OperandFormat::kNvFp4, x)), 0.0, 0.1);  // of the tensor: it has one scale
}

TEST_F(MeasureRoundingTest, TakesNoticeOfRowsThatAreThereAlone) {
  const Tensor x = pool_.normal({1, 6, 40}), four = x.reshape({6, 40}).rows(0, 4).reshape({1, 4, 40});
  set(x, 4 * 40, 0x1p30);
  EXPECT_EQ(measure(OperandFormat::kNvFp4, x, BlockShape::kRows, pool_.ints({2}, {0, 4})),
            measure(OperandFormat::kNvFp4, four));
  EXPECT_EQ(measure(OperandFormat::kFp8, x, BlockShape::kRows, pool_.ints({2}, {0, 0})), std::vector<double>(5));
  const Tensor zeros = pool_.zeros({1, 3, 40});
  EXPECT_EQ(measure(OperandFormat::kMxFp8, zeros), std::vector<double>(5));
  set(zeros, 1, 2.0);  // alone in its block: nothing beside it can be lost
  EXPECT_EQ(measure(OperandFormat::kMxFp8, zeros), (std::vector<double>{1, 0, 0, 0, 0}));
}

// The rows of each expert are a tensor, with a scale that no other's rows change, wherever they lie.
TEST_F(MeasureRoundingTest, ExpertsAreTensors) {
  const Tensor x = pool_.normal({12, 40}), whole = x.reshape({1, 12, 40});
  for (int64_t i = 0; i < 12 * 40; ++i) set(x, i, get(x, i) * std::exp2(static_cast<double>(i / 40)));
  const Tensor offsets = pool_.ints({4}, {0, 5, 5, 9});
  for (const OperandFormat format : {OperandFormat::kFp8, OperandFormat::kMxFp8, OperandFormat::kNvFp4}) {
    const auto of_rows = [&](int64_t begin, int64_t end) {
      return measure(format, x.rows(begin, end).reshape({1, end - begin, 40}));
    };
    std::vector<double> apart = of_rows(0, 5);
    const std::vector<double> others = of_rows(5, 9);
    for (size_t i = 0; i < 5; ++i) apart[i] += others[i];
    EXPECT_EQ(measure(format, whole, BlockShape::kRows, offsets), apart);
    EXPECT_EQ(apart == of_rows(0, 9), format != OperandFormat::kNvFp4);

    std::vector<double> picks;
    const Tensor in_order = pool_.zeros({9, 40});
    for (int64_t row = 0; row < 9; ++row) {
      picks.push_back(static_cast<double>(row * 7 % 12));
      for (int64_t j = 0; j < 40; ++j) set(in_order, row * 40 + j, get(x, row * 7 % 12 * 40 + j));
    }
    picks.insert(picks.end(), 3, 11.0);  // room that no expert has
    EXPECT_EQ(measure(format, whole, BlockShape::kRows, offsets, pool_.ints({12}, picks)),
              measure(format, in_order.reshape({1, 9, 40}), BlockShape::kRows, offsets));
  }
}

}  // namespace
}  // namespace nmoe::test
