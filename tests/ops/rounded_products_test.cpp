// Products whose operands are rounded to low precision first, against loops over what the quantisers' codes stand for.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/matrix.h"
#include "ops/row_of.h"
#include "ops/signal_to_noise.h"
#include "support/tensors.h"
#include "tensor/low_precision.h"

namespace nmoe::test {
namespace {

constexpr OperandFormat kFormats[] = {OperandFormat::kFp8, OperandFormat::kMxFp8, OperandFormat::kNvFp4};

// [rows, cols] of a b^T.
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      for (size_t k = 0; k < a[i].size(); ++k) c[i][j] += a[i][k] * b[j][k];
    }
  }
  return c;
}

std::vector<double> flat(const Matrix& x) {
  std::vector<double> values;
  for (const auto& row : x) values.insert(values.end(), row.begin(), row.end());
  return values;
}

class RoundedProducts : public ::testing::Test {
 protected:
  static Matrix matrix(Tensor x) {
    Matrix y(static_cast<size_t>(x.dim(0)));
    for (int64_t i = 0; i < x.num_elements(); ++i) y[static_cast<size_t>(i / x.dim(1))].push_back(get(x, i));
    return y;
  }

  // What the codes of x's blocks stand for, the tensor's scale included.
  Matrix rounded(const Matrix& x, OperandFormat format, BlockShape blocks) {
    const auto N = static_cast<int64_t>(x.size()), C = static_cast<int64_t>(x[0].size()), n = block_size(format);
    const bool is_nvfp4 = format == OperandFormat::kNvFp4;
    const int64_t height = blocks == BlockShape::kTiles ? n : 1;
    const Tensor source = pool_.zeros({1, N, C}), amax = is_nvfp4 ? pool_.zeros({1}) : Tensor(),
                 values = pool_.zeros(DType::kU8, {1, N, is_nvfp4 ? (C + 1) / 2 : C}),
                 scales = pool_.zeros(DType::kU8, {1, (N + height - 1) / height, (C + n - 1) / n});
    const std::vector<double> elements = flat(x);
    for (size_t i = 0; i < elements.size(); ++i) set(source, static_cast<int64_t>(i), elements[i]);
    if (is_nvfp4) ops_->abs_max({.x = source, .amax = amax});
    ops_->quantize({.format = format, .blocks = blocks, .x = source, .amax = amax, .values = values, .scales = scales});
    Matrix y(x.size());
    for (int64_t i = 0; i < N; ++i) {
      for (int64_t j = 0; j < C; ++j) {
        const uint8_t scale = scales.data<uint8_t>()[i / height * scales.dim(2) + j / n];
        const uint8_t code = values.data<uint8_t>()[i * values.dim(2) + (is_nvfp4 ? j / 2 : j)];
        const float value = is_nvfp4 ? e2m1_to_float(code >> (j % 2 * 4) & 15) * e4m3_to_float(scale)
                                     : e4m3_to_float(code) * e8m0_to_float(scale);
        y[static_cast<size_t>(i)].push_back(static_cast<double>(value) * (is_nvfp4 ? get(amax, 0) / 2688 : 1.0));
      }
    }
    return y;
  }
  Matrix rounded_weights(const Matrix& w, OperandFormat format) {  // for sums over its columns
    return rounded(w, format, format == OperandFormat::kMxFp8 ? BlockShape::kRows : BlockShape::kTiles);
  }
  // Along columns, as rows of the result.
  Matrix rounded_columns(const Matrix& x, OperandFormat format, bool transform = true) {
    Matrix columns = transposed(x);
    for (std::vector<double>& column : columns) {
      if (format != OperandFormat::kNvFp4) break;
      column.resize((column.size() + 15) / 16 * 16);
      for (size_t first = 0; first < column.size(); first += 16) {
        float block[16];
        for (size_t i = 0; i < 16; ++i) block[i] = static_cast<float>(column[first + i]);
        if (transform) random_hadamard(block);
        for (size_t i = 0; i < 16; ++i) column[first + i] = static_cast<double>(block[i]);
      }
    }
    return rounded(columns, format, BlockShape::kRows);
  }

  TensorPool pool_{DType::kF32};
  ReadyDevice ops_ = cpu_device(DType::kF32);
};

// Both extents leave short blocks in every format.
TEST_F(RoundedProducts, AreThoseOfTheRoundedOperands) {
  const int64_t T = 41, in = 150, out = 139;
  for (const OperandFormat format : kFormats) {
    const Tensor x = pool_.normal({T, in}), w = pool_.normal({out, in}, 0.02), dy = pool_.normal({T, out}, 1e-4);
    const Tensor y = pool_.zeros({T, out}), dx = pool_.zeros({T, in}), dw = pool_.zeros({out, in});
    const OperandRounding rounding{.format = format};
    ops_->linear_forward({.x = x, .w = w, .y = y, .rounding = rounding});
    const Matrix rounded_w = rounded_weights(matrix(w), format);
    EXPECT_TRUE(near(y, flat(product(rounded(matrix(x), format, BlockShape::kRows), rounded_w)), 3e-4));

    ops_->linear_backward_input({.dy = dy, .w = w, .dx = dx, .rounding = rounding});
    const Matrix rounded_w_t = rounded_weights(transposed(matrix(w)), format);
    EXPECT_TRUE(near(dx, flat(product(rounded(matrix(dy), format, BlockShape::kRows), rounded_w_t)), 3e-4));
    // Tiles serve both products.
    if (format != OperandFormat::kMxFp8) {
      EXPECT_EQ(transposed(rounded_w), rounded_w_t);
    }

    ops_->linear_backward_weight({.x = x, .dy = dy, .dw = dw, .rounding = rounding});
    EXPECT_TRUE(near(dw, flat(product(rounded_columns(matrix(dy), format), rounded_columns(matrix(x), format))), 3e-4));
    if (format == OperandFormat::kNvFp4) {
      ops_->linear_backward_weight({.x = x, .dy = dy, .dw = dw, .rounding = {.format = format, .transform = false}});
      EXPECT_TRUE(near(dw,
                       flat(product(rounded_columns(matrix(dy), format, /*transform=*/false),
                                    rounded_columns(matrix(x), format, /*transform=*/false))),
                       3e-4));
      ops_->linear_backward_weight({.x = x, .dy = dy, .dw = dw, .rounding = rounding});
    }
    const Tensor twice = pool_.clone(dw);
    ops_->linear_backward_weight({.x = x, .dy = dy, .dw = twice, .accumulate = true, .rounding = rounding});
    for (int64_t i = 0; i < dw.num_elements(); ++i) ASSERT_NEAR(get(twice, i), 2 * get(dw, i), 1e-6);
  }
}

// Each expert's product is as if it were alone: blocks along tokens begin with it, and its rows and weights have scales
// of their own.
TEST_F(RoundedProducts, ExpertsAreApart) {
  const int64_t in = 40, out = 35, E = 4, capacity = 60;
  const Tensor offsets = pool_.ints({E + 1}, {0, 21, 21, 22, 53});
  for (const OperandFormat format : kFormats) {
    const Tensor x = pool_.normal({capacity, in}), dy = pool_.normal({capacity, out}), w = pool_.normal({E, out, in});
    for (int64_t row = 0; row < 21; ++row) set(x, row * in, 800.0), set(dy, row * out, -800.0);
    for (int64_t i = 53 * in; i < capacity * in; ++i) set(x, i, 1e30);  // nobody's rows
    const Tensor y = pool_.zeros({capacity, out}), dx = pool_.zeros({capacity, in}), dw = pool_.full({E, out, in}, 3);
    const OperandRounding rounding{.format = format};
    ops_->grouped_linear_forward({.x = x, .w = w, .offsets = offsets, .y = y, .rounding = rounding});
    ops_->grouped_linear_backward_input({.dy = dy, .w = w, .offsets = offsets, .dx = dx, .rounding = rounding});
    ops_->grouped_linear_backward_weight({.x = x, .dy = dy, .offsets = offsets, .dw = dw, .rounding = rounding});
    for (int64_t e = 0; e < E; ++e) {
      const int64_t begin = offsets.data<int32_t>()[e], end = offsets.data<int32_t>()[e + 1];
      if (begin == end) {
        for (const double value : values(dw[e])) EXPECT_EQ(value, 0.0);
        continue;
      }
      const Tensor one_y = pool_.zeros({end - begin, out}), one_dx = pool_.zeros({end - begin, in}),
                   one_dw = pool_.zeros({out, in});
      ops_->linear_forward({.x = x.rows(begin, end), .w = w[e], .y = one_y, .rounding = rounding});
      ops_->linear_backward_input({.dy = dy.rows(begin, end), .w = w[e], .dx = one_dx, .rounding = rounding});
      EXPECT_TRUE(near(y.rows(begin, end), one_y, 3e-4));
      EXPECT_TRUE(near(dx.rows(begin, end), one_dx, 3e-4));
      ops_->linear_backward_weight(
          {.x = x.rows(begin, end), .dy = dy.rows(begin, end), .dw = one_dw, .rounding = rounding});
      EXPECT_TRUE(near(dw[e], one_dw, 3e-4));
    }
  }
}

// What is known of these formats on normal values, less the error of two operands: 3 dB. Gradients of weights of ragged
// experts are here too, with the transform.
TEST_F(RoundedProducts, HaveTheFormatsNoise) {
  const int64_t in = 96, out = 96, E = 3, R = 300;
  const Tensor x = pool_.normal({R, in}), dy = pool_.normal({R, out}), w = pool_.normal({E, out, in});
  const Tensor offsets = pool_.ints({E + 1}, {0, 133, 250, 300}), key = pool_.zeros(DType::kI64, {1});
  const auto all = [&](const OperandRounding& forward, const OperandRounding& backward) {
    const Tensor y = pool_.zeros({R, out}), dx = pool_.zeros({R, in}), dw = pool_.zeros({E, out, in});
    ops_->grouped_linear_forward({.x = x, .w = w, .offsets = offsets, .y = y, .rounding = forward});
    ops_->grouped_linear_backward_input({.dy = dy, .w = w, .offsets = offsets, .dx = dx, .rounding = backward});
    ops_->grouped_linear_backward_weight({.x = x, .dy = dy, .offsets = offsets, .dw = dw, .rounding = backward});
    return std::vector{y, dx, dw};
  };
  const std::vector<Tensor> exact = all({}, {});
  const auto check = [&](OperandFormat format, Tensor random_key, double y, double dx, double dw) {
    const std::vector<Tensor> low = all({.format = format}, {.format = format, .random = {.key = random_key}});
    EXPECT_GT(signal_to_noise(low[0], exact[0]), y);
    EXPECT_GT(signal_to_noise(low[1], exact[1]), dx);
    EXPECT_GT(signal_to_noise(low[2], exact[2]), dw);
    for (size_t i = 0; i < 3; ++i) EXPECT_LT(signal_to_noise(low[i], exact[i]), 32);
  };
  check(OperandFormat::kFp8, {}, 28, 28, 28);
  check(OperandFormat::kMxFp8, {}, 28, 28, 28);
  check(OperandFormat::kNvFp4, {}, 15.5, 15.5, 16.5);
  check(OperandFormat::kNvFp4, key, 15.5, 14, 14.5);
}

// Codes of rows stand for the operand: its values are not read then. Of picked rows the codes lie as the source does.
TEST_F(RoundedProducts, TakeCodesOfRows) {
  const int64_t E = 3, N = 200, R = 300, in = 150, out = 139;
  const OperandRounding rounding{.format = OperandFormat::kFp8};
  const auto coded = [&](const Tensor& x) {
    const int64_t rows = x.dim(0), width = x.dim(1), across = (width + 127) / 128;
    const RowCodes codes{.values = pool_.zeros(DType::kU8, {rows, width}),
                         .scales = pool_.zeros(DType::kU8, {rows, across})};
    ops_->quantize({.format = OperandFormat::kFp8,
                    .x = x.reshape({1, rows, width}),
                    .values = codes.values.reshape({1, rows, width}),
                    .scales = codes.scales.reshape({1, rows, across})});
    OperandRounding with_codes = rounding;
    with_codes.rows = codes;
    return with_codes;
  };
  const Tensor x = pool_.normal({N, in}), w = pool_.normal({out, in}), dy = pool_.normal({N, out});
  const Tensor lost_x = pool_.full({N, in}, 1e9), lost_dy = pool_.full({N, out}, 1e9);
  Tensor expected = pool_.zeros({N, out}), actual = pool_.zeros({N, out});
  ops_->linear_forward({.x = x, .w = w, .y = expected, .rounding = rounding});
  ops_->linear_forward({.x = lost_x, .w = w, .y = actual, .rounding = coded(x)});
  EXPECT_TRUE(same_bits(actual, expected));
  expected = pool_.zeros({N, in}), actual = pool_.zeros({N, in});
  ops_->linear_backward_input({.dy = dy, .w = w, .dx = expected, .rounding = rounding});
  ops_->linear_backward_input({.dy = lost_dy, .w = w, .dx = actual, .rounding = coded(dy)});
  EXPECT_TRUE(same_bits(actual, expected));

  const Tensor offsets = pool_.ints({E + 1}, {0, 90, 90, 180}), weights = pool_.normal({E, out, in});
  expected = pool_.zeros({N, out}), actual = pool_.zeros({N, out});
  ops_->grouped_linear_forward({.x = x, .w = weights, .offsets = offsets, .y = expected, .rounding = rounding});
  ops_->grouped_linear_forward({.x = lost_x, .w = weights, .offsets = offsets, .y = actual, .rounding = coded(x)});
  EXPECT_TRUE(same_bits(actual, expected));
  expected = pool_.zeros({N, in}), actual = pool_.zeros({N, in});
  ops_->grouped_linear_backward_input(
      {.dy = dy, .w = weights, .offsets = offsets, .dx = expected, .rounding = rounding});
  ops_->grouped_linear_backward_input(
      {.dy = lost_dy, .w = weights, .offsets = offsets, .dx = actual, .rounding = coded(dy)});
  EXPECT_TRUE(same_bits(actual, expected));

  std::vector<double> picks;
  for (int64_t r = 0; r < R; ++r) picks.push_back(static_cast<double>(r * 7 % N));
  const Tensor index = pool_.ints({R}, picks), bounds = pool_.ints({E + 1}, {0, 130, 131, R}),
               even_weights = pool_.normal({E, 2 * 70, in}), copies = row_of(pool_, index, R, N);
  std::vector<Tensor> results;
  for (const bool is_lost : {false, true}) {
    const Tensor pre = pool_.zeros({R, 2 * 70}), h = pool_.zeros({R, 70});
    ops_->grouped_activation_forward({.x = {is_lost ? lost_x : x, index, copies},
                                      .w = even_weights,
                                      .offsets = bounds,
                                      .row_weight = {},
                                      .pre = pre,
                                      .h = h,
                                      .rounding = is_lost ? coded(x) : rounding});
    results.insert(results.end(), {pre, h});
  }
  EXPECT_TRUE(same_bits(results[2], results[0]));
  EXPECT_TRUE(same_bits(results[3], results[1]));
}

TEST_F(RoundedProducts, CodesOfColumnsWantFp8) {
  const ColumnCodes columns{.values = pool_.zeros(DType::kU8, {1, 8, 128}), .scales = pool_.zeros(DType::kU8, {1, 8})};
  const Tensor offsets = pool_.ints({2}, {0, 4});
  EXPECT_THROW(ops_->grouped_linear_backward_weight({.x = pool_.zeros({4, 8}),
                                                     .dy = pool_.zeros({4, 8}),
                                                     .offsets = offsets,
                                                     .dw = pool_.zeros({1, 8, 8}),
                                                     .x_columns = columns}),
               CheckFailure);
}

// Codes of columns that one operation leaves are what the next would make of the same values.
TEST_F(RoundedProducts, GradientsTakeColumns) {
  const int64_t E = 3, R = 300, in = 40, out = 24, blocks = R / 128 + E;
  const Tensor offsets = pool_.ints({E + 1}, {0, 150, 150, 290});
  const OperandRounding rounding{.format = OperandFormat::kFp8};
  const Tensor pre = pool_.normal({R, 2 * in}), h = pool_.zeros({R, in}), dy = pool_.normal({R, out}),
               row_weight = pool_.normal({R}), count = offsets.rows(E, E + 1);
  const ColumnCodes h_columns{.values = pool_.zeros(DType::kU8, {blocks, in, 128}),
                              .scales = pool_.zeros(DType::kU8, {blocks, in})};
  ops_->activation_forward({.pre = pre, .row_weight = row_weight, .h = h, .num_rows = count});
  ops_->activation_forward(
      {.pre = pre, .row_weight = row_weight, .h = {}, .num_rows = count, .h_columns = h_columns, .offsets = offsets});
  const Tensor expected = pool_.zeros({E, out, in}), actual = pool_.zeros({E, out, in});
  ops_->grouped_linear_backward_weight({.x = h, .dy = dy, .offsets = offsets, .dw = expected, .rounding = rounding});
  ops_->grouped_linear_backward_weight(
      {.x = Tensor(), .dy = dy, .offsets = offsets, .dw = actual, .rounding = rounding, .x_columns = h_columns});
  EXPECT_TRUE(same_bits(actual, expected));
}

// So are those that experts leave of hidden units and of the gradients of pre-activations.
TEST_F(RoundedProducts, GradientsTakeColumnsOfExperts) {
  const int64_t E = 3, R = 300, D = 24, F = 40, W = 2 * F, blocks = R / 128 + E;
  const Tensor offsets = pool_.ints({E + 1}, {0, 150, 150, 290}), row_weight = pool_.normal({R});
  const Tensor x = pool_.normal({R, D}), dy = pool_.normal({R, D}), w_in = pool_.normal({E, W, D}),
               w_out = pool_.normal({E, D, F});
  const OperandRounding rounding{.format = OperandFormat::kFp8};
  const auto columns_of = [&](int64_t width) {
    return ColumnCodes{.values = pool_.zeros(DType::kU8, {blocks, width, 128}),
                       .scales = pool_.zeros(DType::kU8, {blocks, width})};
  };
  const auto rows_of = [&](int64_t width) {
    return RowCodes{.values = pool_.zeros(DType::kU8, {R, width}), .scales = pool_.zeros(DType::kU8, {R, 1})};
  };
  std::vector<Tensor> gradients;
  for (const bool leaves : {false, true}) {
    const Tensor pre = pool_.zeros({R, W}), h = pool_.zeros({R, F}), dpre = pool_.zeros({R, W}),
                 drow_weight = pool_.zeros({R}), dw_in = pool_.zeros({E, W, D}), dw_out = pool_.zeros({E, D, F});
    const ColumnCodes of_h = leaves ? columns_of(F) : ColumnCodes{}, of_dpre = leaves ? columns_of(W) : ColumnCodes{};
    ops_->grouped_activation_forward({.x = x,
                                      .w = w_in,
                                      .offsets = offsets,
                                      .row_weight = row_weight,
                                      .pre = pre,
                                      .h = leaves ? Tensor() : h,
                                      .rounding = rounding,
                                      .h_codes = leaves ? rows_of(F) : RowCodes{},
                                      .h_columns = of_h});
    ops_->grouped_activation_backward({.dy = dy,
                                       .w = w_out,
                                       .offsets = offsets,
                                       .pre = pre,
                                       .row_weight = row_weight,
                                       .dpre = dpre,
                                       .drow_weight = drow_weight,
                                       .rounding = rounding,
                                       .dpre_codes = leaves ? rows_of(W) : RowCodes{},
                                       .dpre_columns = of_dpre});
    if (leaves) ops_->fill({dpre, 7.0});
    ops_->grouped_linear_backward_weight({.x = leaves ? Tensor() : h,
                                          .dy = dy,
                                          .offsets = offsets,
                                          .dw = dw_out,
                                          .rounding = rounding,
                                          .x_columns = of_h});
    ops_->grouped_linear_backward_weight(
        {.x = x, .dy = dpre, .offsets = offsets, .dw = dw_in, .rounding = rounding, .dy_columns = of_dpre});
    gradients.insert(gradients.end(), {dw_in, dw_out});
  }
  EXPECT_TRUE(same_bits(gradients[2], gradients[0]));
  EXPECT_TRUE(same_bits(gradients[3], gradients[1]));
}

// The same key and stream give the same bits, another either of them others; and the mean over many is the product.
TEST_F(RoundedProducts, RandomRoundingRepeatsAndIsRightInTheMean) {
  const int64_t T = 32, in = 16, out = 48;
  const Tensor x = pool_.normal({T, in}), dy = pool_.normal({T, out}), w = pool_.normal({out, in});
  const Tensor key = pool_.zeros(DType::kI64, {1});
  const auto gradients = [&](int64_t number, uint64_t stream) {
    *key.data<int64_t>() = number;
    const OperandRounding rounding{.format = OperandFormat::kNvFp4, .random = {.key = key, .stream = stream}};
    const Tensor dx = pool_.zeros({T, in}), dw = pool_.zeros({out, in});
    ops_->linear_backward_input({.dy = dy, .w = w, .dx = dx, .rounding = rounding});
    ops_->linear_backward_weight({.x = x, .dy = dy, .dw = dw, .rounding = rounding});
    return std::pair{dx, dw};
  };
  const auto [dx, dw] = gradients(1, 2);
  EXPECT_TRUE(same_bits(gradients(1, 2).first, dx));
  EXPECT_TRUE(same_bits(gradients(1, 2).second, dw));
  EXPECT_FALSE(same_bits(gradients(2, 2).first, dx));
  EXPECT_FALSE(same_bits(gradients(1, 3).second, dw));

  // Against operands of which the others are rounded alike, and dy is not: its noise falls with the root of the number.
  const Matrix wanted = product(matrix(dy), rounded_weights(transposed(matrix(w)), OperandFormat::kNvFp4));
  const Tensor exact = pool_.zeros({T, in}), mean = pool_.zeros({T, in});
  const std::vector<double> elements = flat(wanted);
  for (size_t i = 0; i < elements.size(); ++i) set(exact, static_cast<int64_t>(i), elements[i]);
  constexpr int64_t kDraws = 200;
  for (int64_t draw = 0; draw < kDraws; ++draw) {
    const Tensor one = gradients(draw, 7).first;
    for (int64_t i = 0; i < one.num_elements(); ++i) set(mean, i, get(mean, i) + get(one, i) / kDraws);
  }
  EXPECT_GT(signal_to_noise(mean, exact), signal_to_noise(dx, exact) + 18);  // 23 dB but for what 8 bits leave out
}

// What is not finite is not rounded away.
TEST_F(RoundedProducts, KeepWhatIsNotFinite) {
  for (const OperandFormat format : kFormats) {
    for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      const Tensor x = pool_.normal({4, 32}), w = pool_.normal({8, 32}), y = pool_.zeros({4, 8}),
                   dw = pool_.zeros({8, 32}), dy = pool_.normal({4, 8});
      set(x, 40, bad);
      ops_->linear_forward({.x = x, .w = w, .y = y, .rounding = {.format = format}});
      ops_->linear_backward_weight({.x = x, .dy = dy, .dw = dw, .rounding = {.format = format}});
      for (int64_t i = 8; i < 16; ++i) EXPECT_TRUE(std::isnan(get(y, i)));
      EXPECT_TRUE(std::isnan(get(dw, 8)));
    }
  }
}

}  // namespace
}  // namespace nmoe::test
