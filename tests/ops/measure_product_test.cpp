#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/quantize_cases.h"
#include "tensor/low_precision.h"

namespace nmoe::test {
namespace {

class MeasureProductTest : public ::testing::Test {
 protected:
  std::vector<double> measure(MeasureProduct args) {
    args.counts = pool_.zeros(DType::kF64, {5});
    ops_->measure_product(args);
    const auto all = args.counts.span<double>();
    return {all.begin(), all.end()};
  }
  // x or w with what its blocks keep of it: by Quantize, which has tests of its own. [N, C]
  std::vector<double> rounded(OperandFormat format, const Tensor& x, BlockShape blocks) {
    const int64_t N = x.dim(0), C = x.dim(1), n = block_size(format), across = (C + n - 1) / n;
    const bool is_nvfp4 = format == OperandFormat::kNvFp4;
    const int64_t height = blocks == BlockShape::kTiles ? n : 1;
    const Tensor whole = x.reshape({1, N, C}), amax = pool_.zeros({1}),
                 values = pool_.zeros(DType::kU8, {1, N, is_nvfp4 ? (C + 1) / 2 : C}),
                 scales = pool_.zeros(DType::kU8, {1, (N + height - 1) / height, across});
    ops_->abs_max({.x = whole, .amax = amax});
    ops_->quantize({.format = format,
                    .blocks = blocks,
                    .x = whole,
                    .amax = is_nvfp4 ? amax : Tensor(),
                    .values = values,
                    .scales = scales});
    const double tensor_scale = 1.0F / nvfp4_tensor_factor(static_cast<float>(get(amax, 0)));
    std::vector<double> all;
    for (int64_t i = 0; i < N; ++i) {
      for (int64_t j = 0; j < C; ++j) {
        const uint8_t scale = scales.data<uint8_t>()[i / height * across + j / n];
        const uint8_t* const codes = values.data<uint8_t>() + i * values.dim(2);
        all.push_back(is_nvfp4 ? e2m1_to_float(codes[j / 2] >> (j % 2 * 4) & 15) *
                                     static_cast<double>(e4m3_to_float(scale)) * tensor_scale
                               : e4m3_to_float(codes[j]) * static_cast<double>(e8m0_to_float(scale)));
      }
    }
    return all;
  }
  static double snr_db(const std::vector<double>& counts) {
    return -10 * std::log10(counts[4] * kLostUnit / counts[3]);
  }

  TensorPool pool_{DType::kF32};
  ReadyDevice ops_ = cpu_device(DType::kF32);
};

// All outputs from what Quantize writes, of which the sample is taken as the contract says.
TEST_F(MeasureProductTest, IsWhatRoundedOperandsGive) {
  for (const OperandFormat format : {OperandFormat::kFp8, OperandFormat::kMxFp8, OperandFormat::kNvFp4}) {
    for (const bool over_out : {false, true}) {
      constexpr int64_t R = 75, out = 200, in = 144;
      const int64_t depth = over_out ? out : in, cols = over_out ? in : out;
      const Tensor x = pool_.normal({R, depth}), w = pool_.normal({out, in}), w_summed = pool_.zeros({cols, depth});
      for (int64_t i = 0; i < x.num_elements(); ++i) set(x, i, get(x, i) * std::exp2(static_cast<double>(i % 9)));
      for (int64_t j = 0; j < cols; ++j) {
        for (int64_t k = 0; k < depth; ++k) {
          set(w_summed, j * depth + k, get(w, over_out ? k * in + j : j * in + k));
        }
      }
      const BlockShape tiles = format == OperandFormat::kMxFp8 ? BlockShape::kRows : BlockShape::kTiles;
      const std::vector<double> x_kept = rounded(format, x, BlockShape::kRows),
                                w_kept = rounded(format, w_summed, tiles);
      std::vector<double> expected(5);
      for (int64_t tile = 0; tile < 64; ++tile) {
        const int64_t row = tile / 8 * R / 8, col = tile % 8 * cols / 8 / 8 * 8;
        double signal = 0, noise = 0;
        for (int64_t i = row; i < std::min(row + 8, R); ++i) {
          for (int64_t j = col; j < std::min(col + 8, cols); ++j) {
            double exact = 0, kept = 0;
            for (int64_t k = 0; k < depth; ++k) {
              exact += get(x, i * depth + k) * get(w_summed, j * depth + k);
              kept += x_kept[static_cast<size_t>(i * depth + k)] * w_kept[static_cast<size_t>(j * depth + k)];
            }
            expected[0] += 1;
            signal += exact * exact;
            noise += (kept - exact) * (kept - exact);
          }
        }
        expected[3] += 1;
        expected[4] += noise / signal / kLostUnit;
      }
      const std::vector<double> counts =
          measure({.format = format, .x = x, .w = w.reshape({1, out, in}), .over_out = over_out});
      EXPECT_EQ(counts[0], expected[0]);
      EXPECT_EQ(counts[3], expected[3]);
      EXPECT_NEAR(counts[4], expected[4], 1e-5 * expected[4]) << static_cast<int>(format) << over_out;
      EXPECT_EQ(counts[4], std::rint(counts[4]));  // whole, so that sums have no order
    }
  }
}

// Two operands of 31.5 dB leave 28.5, NVFP4's of 20.4 (rows) and 19.1 (tiles) 16.7, unless most of what is summed
// cancels out: then operands do not show it.
TEST_F(MeasureProductTest, WhatCancelsOutIsLost) {
  const Tensor x = pool_.normal({64, 256}), w = pool_.normal({1, 128, 256});
  EXPECT_NEAR(snr_db(measure({.x = x, .w = w})), 28.5, 0.5);
  EXPECT_NEAR(snr_db(measure({.format = OperandFormat::kNvFp4, .x = x, .w = w})), 16.7, 0.7);
  for (int64_t i = 0; i < x.num_elements(); ++i) set(x, i, get(x, i) + (i % 2 == 0 ? 30.0 : -30.0));
  for (int64_t i = 0; i < w.num_elements(); i += 2) set(w, i + 1, get(w, i));
  EXPECT_LT(snr_db(measure({.x = x, .w = w})), 10.0);
}

// Rows of experts go through their own matrix, those behind the last through none; picked rows as those they are.
TEST_F(MeasureProductTest, GroupsAndPickedRows) {
  constexpr int64_t in = 48, out = 32;
  const Tensor x = pool_.normal({40, in}), w = pool_.normal({3, out, in}), offsets = pool_.ints({4}, {0, 8, 8, 24});
  for (int64_t i = 24 * in; i < 40 * in; ++i) set(x, i, NAN);  // not there
  const std::vector<double> counts = measure({.format = OperandFormat::kNvFp4, .x = x, .w = w, .offsets = offsets});
  EXPECT_EQ(counts[3], 16);
  EXPECT_NEAR(snr_db(counts), 16.7, 1.0);
  // An expert's tiles and scale are its own, whoever else is here.
  for (const OperandFormat format : {OperandFormat::kFp8, OperandFormat::kMxFp8, OperandFormat::kNvFp4}) {
    const auto of_expert = [&](int64_t expert, int64_t begin, int64_t end) {
      return measure({.format = format,
                      .x = x.rows(begin, end),
                      .w = w.rows(expert, expert + 1),
                      .offsets = pool_.ints({2}, {0, static_cast<double>(end - begin)})});
    };
    std::vector<double> apart = of_expert(0, 0, 8);
    const std::vector<double> others = of_expert(2, 8, 24);
    for (size_t i = 0; i < 5; ++i) apart[i] += others[i];
    EXPECT_EQ(measure({.format = format, .x = x, .w = w, .offsets = offsets}), apart);
  }
  EXPECT_EQ(measure({.x = x, .w = w, .offsets = pool_.ints({4}, {0, 0, 0, 0})}), std::vector<double>(5));

  std::vector<double> picks;
  const Tensor in_order = pool_.zeros({24, in});
  for (int64_t i = 0; i < 24; ++i) {
    const int64_t source = i * 7 % 20;
    picks.push_back(static_cast<double>(source));
    for (int64_t k = 0; k < in; ++k) set(in_order, i * in + k, get(x, source * in + k));
  }
  const OperandRows picked(x.rows(0, 20), pool_.ints({24}, picks));
  EXPECT_EQ(measure({.x = picked, .w = w, .offsets = offsets}), measure({.x = in_order, .w = w, .offsets = offsets}));
}

TEST_F(MeasureProductTest, OutputsOfZeroCountNothing) {
  EXPECT_EQ(measure({.x = pool_.zeros({8, 32}), .w = pool_.normal({1, 16, 32})}), std::vector<double>(5));
}

}  // namespace
}  // namespace nmoe::test
