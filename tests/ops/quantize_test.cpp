#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/quantize_cases.h"
#include "tensor/low_precision.h"

namespace nmoe::test {
namespace {

class QuantizeTest : public ::testing::Test {
 protected:
  TensorPool pool_{DType::kF32};
  ReadyDevice ops_ = cpu_device(DType::kF32);
};

TEST_F(QuantizeTest, BlocksAreThoseOfTheReference) {
  const std::vector<QuantizeCase> cases = read_quantize_cases(pool_);
  EXPECT_EQ(cases.size(), 15U * 6);
  for (const QuantizeCase& one : cases) {
    ops_->quantize(one.args);
    EXPECT_EQ(bytes_of(one.args.values), one.values) << one.name;
    EXPECT_EQ(bytes_of(one.args.scales), one.scales) << one.name;
    const Tensor amax = pool_.zeros({1});
    ops_->abs_max({.x = one.args.x, .amax = amax});
    EXPECT_TRUE(same_bits(amax, one.amax)) << one.name;
  }
}

// Rows that are not there are neither read nor written, and change nothing.
TEST_F(QuantizeTest, RowsBeyondTheirNumberAreLeftAlone) {
  const Tensor x = pool_.normal({1, 6, 40});
  for (int64_t i = 4 * 40; i < 6 * 40; ++i) set(x, i, std::numeric_limits<double>::quiet_NaN());
  const Tensor num_rows = pool_.ints({1}, {4}), amax = pool_.full({1}, -1.0);
  ops_->abs_max({.x = x, .num_rows = num_rows, .amax = amax});
  double largest = 0;
  for (int64_t i = 0; i < 4 * 40; ++i) largest = std::max(largest, std::abs(get(x, i)));
  EXPECT_EQ(get(amax, 0), largest);
  const Tensor values = pool_.zeros(DType::kU8, {1, 6, 20}), scales = pool_.zeros(DType::kU8, {1, 6, 3});
  std::ranges::fill(values.span<uint8_t>(), uint8_t{0xAA});
  std::ranges::fill(scales.span<uint8_t>(), uint8_t{0xAA});
  ops_->quantize({.format = OperandFormat::kNvFp4,
                  .x = x,
                  .num_rows = num_rows,
                  .amax = amax,
                  .values = values,
                  .scales = scales});
  for (int64_t i = 4 * 20; i < 6 * 20; ++i) EXPECT_EQ(values.data<uint8_t>()[i], 0xAA);
  for (int64_t i = 0; i < 6 * 3; ++i) EXPECT_EQ(scales.data<uint8_t>()[i] == 0xAA, i >= 4 * 3) << i;
}

// Each of several matrices has tiles and a largest magnitude of its own.
TEST_F(QuantizeTest, MatricesOfAStackAreApart) {
  const Tensor x = pool_.normal({3, 20, 24});
  for (int64_t i = 0; i < 20 * 24; ++i) set(x, 2 * 20 * 24 + i, 1000 * get(x, 2 * 20 * 24 + i));
  const Tensor amax = pool_.zeros({3}), values = pool_.zeros(DType::kU8, {3, 20, 12}),
               scales = pool_.zeros(DType::kU8, {3, 2, 2});
  ops_->abs_max({.x = x, .amax = amax});
  ops_->quantize({.format = OperandFormat::kNvFp4,
                  .blocks = BlockShape::kTiles,
                  .x = x,
                  .amax = amax,
                  .values = values,
                  .scales = scales});
  for (int64_t g = 0; g < 3; ++g) {
    const Tensor one_amax = pool_.zeros({1}), one_values = pool_.zeros(DType::kU8, {1, 20, 12}),
                 one_scales = pool_.zeros(DType::kU8, {1, 2, 2}), one = x.rows(g, g + 1);
    ops_->abs_max({.x = one, .amax = one_amax});
    EXPECT_EQ(get(one_amax, 0), get(amax, g));
    ops_->quantize({.format = OperandFormat::kNvFp4,
                    .blocks = BlockShape::kTiles,
                    .x = one,
                    .amax = one_amax,
                    .values = one_values,
                    .scales = one_scales});
    EXPECT_EQ(bytes_of(one_values), bytes_of(values.rows(g, g + 1)));
    EXPECT_EQ(bytes_of(one_scales), bytes_of(scales.rows(g, g + 1)));
  }
}

TEST_F(QuantizeTest, TransposedTilesHaveTheSameCodes) {
  const int64_t G = 10, N = 150, C = 270;
  const Tensor x = pool_.normal({G, N, C});
  set_specials(x.reshape({G, N * C}));  // the first eight are of one kind each
  for (int64_t i = (G - 1) * N * C; i < G * N * C; ++i) set(x, i, 100 * get(x, i));
  const Quantize args{.format = OperandFormat::kFp8,
                      .blocks = BlockShape::kTiles,
                      .x = x,
                      .values = pool_.zeros(DType::kU8, {G, N, C}),
                      .scales = pool_.zeros(DType::kU8, {G, 2, 3}),
                      .transposed_values = pool_.zeros(DType::kU8, {G, C, N}),
                      .transposed_scales = pool_.zeros(DType::kU8, {G, 3, 2})};
  ops_->quantize(args);
  const auto expect_transposed = [&](const Tensor& from, const Tensor& to) {
    const int64_t rows = from.dim(1), cols = from.dim(2);
    for (int64_t i = 0; i < from.num_elements(); ++i) {
      const int64_t g = i / (rows * cols), row = i / cols % rows, col = i % cols;
      ASSERT_EQ(to.data<uint8_t>()[(g * cols + col) * rows + row], from.data<uint8_t>()[i]) << g << row << col;
    }
  };
  expect_transposed(args.values, args.transposed_values);
  expect_transposed(args.scales, args.transposed_scales);
  // What a quantiser makes of the transposed matrix.
  const Tensor turned = pool_.zeros({G, C, N}), values = pool_.zeros(DType::kU8, {G, C, N}),
               scales = pool_.zeros(DType::kU8, {G, 3, 2});
  for (int64_t i = 0; i < x.num_elements(); ++i) set(turned, i / (N * C) * N * C + i % C * N + i / C % N, get(x, i));
  ops_->quantize(
      {.format = OperandFormat::kFp8, .blocks = BlockShape::kTiles, .x = turned, .values = values, .scales = scales});
  EXPECT_EQ(bytes_of(values), bytes_of(args.transposed_values));
  EXPECT_EQ(bytes_of(scales), bytes_of(args.transposed_scales));
}

// Of the rows that are there, as the quantiser makes them of what was written.
TEST_F(QuantizeTest, ActivationsLeaveTheirCodes) {
  const int64_t N = 12, F = 150, W = 2 * F;
  for (const int64_t rows : {10, 0}) {
    const Tensor pre = pool_.normal({N, W}), dh = pool_.normal({N, F}), h = pool_.zeros({N, F}),
                 dpre = pool_.zeros({N, W}), num_rows = pool_.ints({1}, {static_cast<double>(rows)});
    set_specials(pre);
    set_specials(dh, 6);
    const auto room = [&](int64_t width) -> RowCodes {
      return {.values = pool_.zeros(DType::kU8, {N, width}),
              .scales = pool_.zeros(DType::kU8, {N, (width + 127) / 128})};
    };
    const auto expect_codes = [&](const RowCodes& codes, const Tensor& x) {
      const RowCodes expected = room(x.dim(1));
      ops_->quantize({.x = x.reshape({1, N, x.dim(1)}),
                      .num_rows = num_rows,
                      .values = expected.values.reshape({1, N, x.dim(1)}),
                      .scales = expected.scales.reshape({1, N, expected.scales.dim(1)})});
      EXPECT_EQ(bytes_of(codes.values), bytes_of(expected.values));
      EXPECT_EQ(bytes_of(codes.scales), bytes_of(expected.scales));
    };
    const RowCodes h_codes = room(F), dpre_codes = room(W);
    ops_->activation_forward({.pre = pre, .row_weight = {}, .h = h, .num_rows = num_rows, .h_codes = h_codes});
    expect_codes(h_codes, h);
    ops_->activation_backward({.pre = pre,
                               .row_weight = {},
                               .dh = dh,
                               .dpre = dpre,
                               .drow_weight = {},
                               .num_rows = num_rows,
                               .dpre_codes = dpre_codes});
    expect_codes(dpre_codes, dpre);
  }
}

// So do experts, of rows and of columns, of which no block crosses from one to the next: experts with 0, 1, 127, 128
// and 129 rows, and rows that are nobody's.
TEST_F(QuantizeTest, ExpertsLeaveTheirCodes) {
  const int64_t E = 5, R = 400, D = 24, F = 40, W = 2 * F, blocks = R / 128 + E;
  const std::vector<double> bounds{0, 0, 1, 128, 256, 385};
  const Tensor offsets = pool_.ints({E + 1}, bounds), count = offsets.rows(E, E + 1), row_weight = pool_.normal({R});
  const Tensor x = pool_.normal({R, D}), dy = pool_.normal({R, D}), w_in = pool_.normal({E, W, D}),
               w_out = pool_.normal({E, D, F});
  set_specials(x);
  set_specials(x.rows(150, 158), 4);
  set_specials(dy.rows(140, 148), 3);
  const auto rows_of = [&](int64_t width) {
    return RowCodes{.values = pool_.zeros(DType::kU8, {R, width}), .scales = pool_.zeros(DType::kU8, {R, 1})};
  };
  const auto columns_of = [&](int64_t width) {
    return ColumnCodes{.values = pool_.zeros(DType::kU8, {blocks, width, 128}),
                       .scales = pool_.zeros(DType::kU8, {blocks, width})};
  };
  const auto expect_codes = [&](const RowCodes& rows, const ColumnCodes& columns, const Tensor& of) {
    const int64_t width = of.dim(1);
    const RowCodes expected = rows_of(width);
    ops_->quantize({.x = of.reshape({1, R, width}),
                    .num_rows = count,
                    .values = expected.values.reshape({1, R, width}),
                    .scales = expected.scales.reshape({1, R, 1})});
    EXPECT_EQ(bytes_of(rows.values), bytes_of(expected.values));
    EXPECT_EQ(bytes_of(rows.scales), bytes_of(expected.scales));
    const ColumnCodes turned = columns_of(width);
    for (size_t e = 0; e < static_cast<size_t>(E); ++e) {
      const auto begin = static_cast<int64_t>(bounds[e]), end = static_cast<int64_t>(bounds[e + 1]);
      for (int64_t first = begin; first < end; first += 128) {
        const int64_t block = begin / 128 + static_cast<int64_t>(e) + (first - begin) / 128;
        const Tensor column = pool_.zeros({1, width, 128});
        for (int64_t i = 0; i < std::min<int64_t>(128, end - first) * width; ++i) {
          set(column, i % width * 128 + i / width, get(of, first * width + i));
        }
        ops_->quantize({.x = column,
                        .values = turned.values.rows(block, block + 1),
                        .scales = turned.scales.rows(block, block + 1).reshape({1, width, 1})});
      }
    }
    EXPECT_EQ(bytes_of(columns.values), bytes_of(turned.values));
    EXPECT_EQ(bytes_of(columns.scales), bytes_of(turned.scales));
  };
  const OperandRounding rounding{.format = OperandFormat::kFp8};
  const Tensor pre = pool_.zeros({R, W}), h = pool_.zeros({R, F}), dpre = pool_.zeros({R, W});
  const RowCodes h_codes = rows_of(F), dpre_codes = rows_of(W);
  const ColumnCodes h_columns = columns_of(F), dpre_columns = columns_of(W);
  ops_->grouped_activation_forward({.x = x,
                                    .w = w_in,
                                    .offsets = offsets,
                                    .row_weight = row_weight,
                                    .pre = pre,
                                    .h = {},
                                    .rounding = rounding,
                                    .h_codes = h_codes,
                                    .h_columns = h_columns});
  ops_->activation_forward({.pre = pre, .row_weight = row_weight, .h = h, .num_rows = count});
  expect_codes(h_codes, h_columns, h);
  ops_->grouped_activation_backward({.dy = dy,
                                     .w = w_out,
                                     .offsets = offsets,
                                     .pre = pre,
                                     .row_weight = row_weight,
                                     .dpre = dpre,
                                     .drow_weight = pool_.zeros({R}),
                                     .rounding = rounding,
                                     .dpre_codes = dpre_codes,
                                     .dpre_columns = dpre_columns,
                                     .keeps_dpre = true});
  expect_codes(dpre_codes, dpre_columns, dpre);
}

TEST_F(QuantizeTest, NormsLeaveTheirCodes) {
  const int64_t N = 12, C = 150;
  const Tensor x = pool_.normal({N, C}), gain = pool_.zeros({C}), rstd = pool_.zeros({N}), y = pool_.zeros({N, C}),
               dy = pool_.normal({N, C}), dx = pool_.normal({N, C}), dgain = pool_.zeros({C});
  for (int64_t j = 0; j < C; ++j) set(gain, j, tie(j));
  set_specials(x);
  set_specials(dy);
  set_specials(dx, 5);  // ties where dy is zero
  const auto room = [&]() -> RowCodes {
    return {.values = pool_.zeros(DType::kU8, {N, C}), .scales = pool_.zeros(DType::kU8, {N, 2})};
  };
  const auto expect_codes = [&](const RowCodes& codes, const Tensor& of) {
    const RowCodes expected = room();
    ops_->quantize({.x = of.reshape({1, N, C}),
                    .values = expected.values.reshape({1, N, C}),
                    .scales = expected.scales.reshape({1, N, 2})});
    EXPECT_EQ(bytes_of(codes.values), bytes_of(expected.values));
    EXPECT_EQ(bytes_of(codes.scales), bytes_of(expected.scales));
  };
  const RowCodes y_codes = room(), dx_codes = room();
  ops_->rms_norm_forward({.x = x, .gain = gain, .eps = 1e-6, .y = y, .rstd = rstd, .y_codes = y_codes});
  expect_codes(y_codes, y);
  ops_->rms_norm_backward({.x = x,
                           .gain = gain,
                           .rstd = rstd,
                           .dy = dy,
                           .dx = dx,
                           .dgain = dgain,
                           .accumulate_dx = true,
                           .dx_codes = dx_codes});
  expect_codes(dx_codes, dx);
}

// What codes stand for has itself for codes: rounded once more, no value is another. So what was rounded for its way
// and is rounded again for a product is as if it had been rounded for the product.
TEST_F(QuantizeTest, RoundedOnceMoreRowsStayAsTheyAre) {
  constexpr int64_t kRows = 400, kCols = 200;
  test::TensorPool pool(DType::kF32);
  const Tensor x = pool.normal({kRows, kCols});
  for (int64_t row = 0; row < kRows; ++row) {  // of many magnitudes, with outliers, and subnormal
    const float scale = std::ldexp(1.0F, static_cast<int>(row % 300) - 150);
    for (int64_t col = 0; col < kCols; ++col)
      x.data<float>()[row * kCols + col] *= scale * (col % 50 == row % 50 ? 1e4F : 1.0F);
  }
  x.data<float>()[0] = NAN;
  x.data<float>()[kCols] = INFINITY;
  std::fill_n(x.data<float>() + 2 * kCols, kCols, 0.0F);
  std::fill_n(x.data<float>() + 3 * kCols, kCols, 448.0F);
  const auto rounded = [&](const Tensor& rows) {
    const RowCodes codes{.values = pool.zeros(DType::kU8, {kRows, kCols}),
                         .scales = pool.zeros(DType::kU8, {kRows, 2})};
    ops_->quantize({.format = OperandFormat::kFp8,
                    .x = rows.reshape({1, kRows, kCols}),
                    .values = codes.values.reshape({1, kRows, kCols}),
                    .scales = codes.scales.reshape({1, kRows, 2})});
    const Tensor widened = pool.zeros({kRows, kCols});
    ops_->widen_rows({.codes = codes, .x = widened});
    return widened;
  };
  const Tensor once = rounded(x), twice = rounded(once);
  EXPECT_FALSE(test::same_bits(once, x));
  EXPECT_TRUE(std::isnan(test::get(once, 5)) && std::isnan(test::get(once, kCols + 5)));
  EXPECT_EQ(test::get(once, 3 * kCols), 448.0);
  EXPECT_TRUE(test::same_bits(twice, once));
}

TEST_F(QuantizeTest, WhatAFormatHasNotIsRefused) {
  const Tensor x = pool_.zeros({1, 32, 32}), values = pool_.zeros(DType::kU8, {1, 32, 32});
  EXPECT_THROW(ops_->quantize({.format = OperandFormat::kMxFp8,
                               .blocks = BlockShape::kTiles,
                               .x = x,
                               .values = values,
                               .scales = pool_.zeros(DType::kU8, {1, 1, 1})}),
               CheckFailure);
  EXPECT_THROW(ops_->quantize({.format = OperandFormat::kFp8,
                               .x = x,
                               .random = {.key = pool_.zeros(DType::kI64, {1})},
                               .values = values,
                               .scales = pool_.zeros(DType::kU8, {1, 32, 1})}),
               CheckFailure);
  EXPECT_THROW(ops_->quantize({.format = OperandFormat::kNvFp4,
                               .x = x,
                               .values = pool_.zeros(DType::kU8, {1, 32, 16}),
                               .scales = pool_.zeros(DType::kU8, {1, 32, 2})}),
               CheckFailure);  // no largest magnitude
}

}  // namespace
}  // namespace nmoe::test
