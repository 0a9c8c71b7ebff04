#include "ops/known_answers.h"

namespace nmoe::test {

// Every expert's rows as a matrix of its own, those that are none too.
void AnswerCheck::quantized_rows() {
  const int64_t C = m_.width(), across = blocks(C, block());
  const Tensor x = act(m_.x);
  size_t first = 0;
  for (int64_t e = 0; e < m_.num_experts(); ++e) {
    const int64_t begin = m_.begin(e), n = m_.rows_of(e);
    const Tensor rows = x.rows(begin, begin + n).reshape({1, n, C}), amax = is_nvfp4() ? stat_room({1}) : Tensor(),
                 values = bytes({1, n, is_nvfp4() ? (C + 1) / 2 : C}), scales = bytes({1, n, across});
    if (is_nvfp4()) ops_.abs_max({.x = rows, .amax = amax});
    RandomRounding random = rounding().random;
    random.experts = {};
    random.first_block = first_block_of(m_.numbers.data<int32_t>()[e]);
    ops_.quantize({.format = format_, .x = rows, .amax = amax, .random = random, .values = values, .scales = scales});
    if (is_nvfp4()) {
      const uint32_t bits = std::bit_cast<uint32_t>(device_.here(amax).data<float>()[0]),
                     expected = std::bit_cast<uint32_t>(answer_.amax[static_cast<size_t>(e)]);
      EXPECT_EQ(bits, expected) << m_.name << ", expert " << e;
    }
    const Tensor codes = device_.here(values), scale = device_.here(scales);
    for (int64_t i = 0; i < n * across; ++i, ++first) {
      const AnsweredBlock& expected = answer_.blocks[first];
      const int64_t row = i / across, from = i % across * block();
      ASSERT_EQ(int{scale.data<uint8_t>()[i]}, int{expected.scale}) << where("scale", begin + row, from);
      for (int64_t j = 0; j < std::ssize(expected.codes); ++j) {
        const uint8_t* const of_row = codes.data<uint8_t>() + row * codes.dim(2);
        const uint8_t code = is_nvfp4() ? of_row[(from + j) / 2] >> (j % 2 * 4) & 15 : of_row[from + j],
                      wanted = expected.codes[static_cast<size_t>(j)];
        ASSERT_TRUE(same_code(code, wanted))
            << fmt::format("{:02x}, not {:02x}: ", code, wanted) << where("code", begin + row, from + j);
      }
    }
  }
  ASSERT_EQ(first, answer_.blocks.size());
}

// FP8's turned ones, too: what AdamW's weights become once a step.
void AnswerCheck::quantized_tiles() {
  const int64_t E = m_.num_experts(), N = m_.rows_of(0), C = m_.width(), n = block(), down = blocks(N, n),
                across = blocks(C, n), packed = is_nvfp4() ? C / 2 : C;
  const bool is_fp8 = format_ == OperandFormat::kFp8;
  const Tensor x = act(m_.x).reshape({E, N, C}), amax = is_nvfp4() ? stat_room({E}) : Tensor();
  const Quantize args{.format = format_,
                      .blocks = BlockShape::kTiles,
                      .x = x,
                      .amax = amax,
                      .values = bytes({E, N, packed}),
                      .scales = bytes({E, down, across}),
                      .transposed_values = is_fp8 ? bytes({E, C, N}) : Tensor(),
                      .transposed_scales = is_fp8 ? bytes({E, across, down}) : Tensor()};
  if (is_nvfp4()) ops_.abs_max({.x = x, .amax = amax});
  ops_.quantize(args);
  const Tensor values = device_.here(args.values), scales = device_.here(args.scales);
  for (int64_t e = 0; is_nvfp4() && e < E; ++e) {
    EXPECT_EQ(std::bit_cast<uint32_t>(device_.here(amax).data<float>()[e]),
              std::bit_cast<uint32_t>(answer_.amax[static_cast<size_t>(e)]));
  }
  for (int64_t i = 0; i < E * N * C; ++i) {
    const int64_t e = i / (N * C), row = i / C % N, col = i % C, tile = (e * down + row / n) * across + col / n;
    const AnsweredBlock& expected = answer_.blocks[static_cast<size_t>(tile)];
    const auto at = static_cast<size_t>(row % n * std::min(n, C - col / n * n) + col % n);
    ASSERT_EQ(int{scales.data<uint8_t>()[tile]}, int{expected.scale}) << where("scale", e * N + row, col);
    const uint8_t stored = values.data<uint8_t>()[(e * N + row) * packed + (is_nvfp4() ? col / 2 : col)],
                  code = is_nvfp4() ? stored >> (col % 2 * 4) & 15 : stored;
    ASSERT_TRUE(same_code(code, expected.codes[at])) << where("code", e * N + row, col);
  }
  if (!is_fp8) return;
  const Tensor turned = device_.here(args.transposed_values), turned_scales = device_.here(args.transposed_scales);
  for (int64_t i = 0; i < E * N * C; ++i) {
    const int64_t e = i / (N * C), row = i / C % N, col = i % C;
    ASSERT_EQ(turned.data<uint8_t>()[(e * C + col) * N + row], values.data<uint8_t>()[i])
        << where("turned code", e * N + row, col);
    ASSERT_EQ(turned_scales.data<uint8_t>()[(e * across + col / n) * down + row / n],
              scales.data<uint8_t>()[(e * down + row / n) * across + col / n]);
  }
}

void AnswerCheck::norms() {
  const RowCodes codes = room_for_rows(m_.width());
  const Tensor ones = act(pool_.full({1, m_.width()}, 1.0)), gains = stat(m_.x), y = room({1, m_.width()}),
               rstd = stat_room({1});
  for (int64_t row = 0; row < m_.num_rows(); ++row) {
    ops_.rms_norm_forward(
        {.x = ones,
         .gain = gains.rows(row, row + 1).reshape({m_.width()}),
         .eps = 0.0,
         .y = y,
         .rstd = rstd,
         .y_codes = {.values = codes.values.rows(row, row + 1), .scales = codes.scales.rows(row, row + 1)}});
  }
  expect_rows(codes);
}

void AnswerCheck::norms_backward() {
  const int64_t R = m_.num_rows(), C = m_.width();
  const RowCodes codes = room_for_rows(C);
  ops_.rms_norm_backward({.x = act(pool_.zeros({R, C})),
                          .gain = stat(pool_.full({C}, 1.0)),
                          .rstd = stat(pool_.full({R}, 1.0)),
                          .dy = act(m_.x),
                          .dx = room({R, C}),
                          .dgain = stat(pool_.zeros({C})),
                          .dx_codes = codes});
  expect_rows(codes);
}

void AnswerCheck::activations() {
  const int64_t R = m_.num_rows(), C = m_.width();
  const RowCodes codes = room_for_rows(C);
  const Tensor pre = pool_.full({R, 2 * C}, double{kGate});
  for (int64_t i = 0; i < R * C; ++i) set(pre, i / C * 2 * C + C + i % C, get(m_.x, i));
  ops_.activation_forward({.pre = act(pre),
                           .row_weight = stat(pool_.full({R}, 1.0 / double{kGate})),
                           .h = room({R, C}),
                           .num_rows = ints(pool_.ints({1}, {static_cast<double>(R)})),
                           .h_codes = codes});
  expect_rows(codes);
}

void AnswerCheck::activations_backward() {
  const int64_t R = m_.num_rows(), C = m_.width();
  const RowCodes codes = room_for_rows(2 * C);
  ops_.activation_backward({.pre = act(pool_.full({R, 2 * C}, double{kGate})),
                            .row_weight = stat(pool_.full({R}, 1.0 / double{kGate})),
                            .dh = act(m_.x),
                            .dpre = room({R, 2 * C}),
                            .drow_weight = stat_room({R}),
                            .num_rows = ints(pool_.ints({1}, {static_cast<double>(R)})),
                            .dpre_codes = codes});
  expect_rows(codes, /*repeats=*/2);
}

void AnswerCheck::columns_of_activations() {
  const int64_t R = m_.num_rows(), C = m_.width(), E = m_.num_experts(), n = block(), all = R / n + E;
  const ColumnCodes columns{.values = bytes({all, C, n}), .scales = bytes({all, C})};
  const Tensor pre = pool_.full({R, 2 * C}, double{kGate});
  for (int64_t i = 0; i < R * C; ++i) set(pre, i / C * 2 * C + C + i % C, get(m_.x, i));
  ops_.activation_forward({.pre = act(pre),
                           .row_weight = stat(pool_.full({R}, 1.0 / double{kGate})),
                           .h = {},
                           .num_rows = ints(pool_.ints({1}, {static_cast<double>(R)})),
                           .h_columns = columns,
                           .offsets = ints(m_.offsets)});
  const Tensor values = device_.here(columns.values), scales = device_.here(columns.scales);
  size_t next = 0;
  for (int64_t e = 0; e < E; ++e) {
    for (int64_t first = 0; first < m_.rows_of(e); first += n) {
      const int64_t at = m_.begin(e) / n + e + first / n;
      for (int64_t col = 0; col < C; ++col, ++next) {
        const AnsweredBlock& expected = answer_.blocks[next];
        ASSERT_EQ(int{scales.data<uint8_t>()[at * C + col]}, int{expected.scale})
            << where("scale", m_.begin(e) + first, col);
        for (int64_t i = 0; i < n; ++i) {
          const uint8_t code = values.data<uint8_t>()[(at * C + col) * n + i];
          const bool is_there = i < std::ssize(expected.codes), is_nan = expected.scale == 0xFF;
          if (!is_there && is_nan) continue;  // zeros times NaN
          const uint8_t wanted = is_there ? expected.codes[static_cast<size_t>(i)] : uint8_t{0};
          ASSERT_TRUE(same_code(code, wanted))
              << fmt::format("{:02x}, not {:02x}: ", code, wanted)
              << where("code", m_.begin(e) + std::min(first + i, m_.rows_of(e) - 1), col);
        }
      }
    }
  }
  ASSERT_EQ(next, answer_.blocks.size());
}

void AnswerCheck::rows_of_products() {
  const int64_t C = m_.width();
  const Tensor w = act(identities(m_.num_experts(), C, C)), y = room(m_.x.shape());
  ops_.grouped_linear_forward(
      {.x = act(m_.x), .w = w, .offsets = ints(m_.offsets), .y = y, .rounding = rounding_with(w)});
  expect_product(y);
}

// FP8 takes the codes of what rows are picked from, and not those rows.
void AnswerCheck::dispatched_rows() {
  const int64_t R = m_.num_rows(), C = m_.width();
  const bool is_fp8 = format_ == OperandFormat::kFp8;
  const Tensor w = act(identities(m_.num_experts(), 2 * C, C)), pre = room({R, 2 * C});
  OperandRounding of_rows = rounding_with(w);
  if (is_fp8) {
    const RowCodes codes = answered_rows();
    of_rows.rows = {.values = device_.there(scattered(codes.values), DType::kU8),
                    .scales = device_.there(scattered(codes.scales), DType::kU8)};
  }
  ops_.grouped_activation_forward({.x = picked(is_fp8 ? room({R, C}) : act(scattered(m_.x))),
                                   .w = w,
                                   .offsets = ints(m_.offsets),
                                   .row_weight = {},
                                   .pre = pre,
                                   .h = room({R, C}),
                                   .rounding = of_rows});
  expect_product(pre, /*repeats=*/2);
}

void AnswerCheck::gradients_of_outputs() {
  const int64_t C = m_.width();
  const Tensor w = act(identities(m_.num_experts(), C, C)), dx = room(m_.x.shape());
  ops_.grouped_linear_backward_input(
      {.dy = act(m_.x), .w = w, .offsets = ints(m_.offsets), .dx = dx, .rounding = rounding_with(w)});
  expect_product(dx);
}

void AnswerCheck::combined_gradients() {
  const int64_t R = m_.num_rows(), C = m_.width();
  const bool is_fp8 = format_ == OperandFormat::kFp8;
  const Tensor w = act(identities(m_.num_experts(), C, C)), dpre = room({R, 2 * C});
  OperandRounding of_rows = rounding_with(w);
  if (is_fp8) {
    const RowCodes codes = answered_rows();
    of_rows.rows = {.values = device_.there(scattered(codes.values), DType::kU8),
                    .scales = device_.there(scattered(codes.scales), DType::kU8)};
  }
  ops_.grouped_activation_backward({.dy = picked(is_fp8 ? room({R, C}) : act(scattered(m_.x))),
                                    .w = w,
                                    .offsets = ints(m_.offsets),
                                    .pre = act(pool_.full({R, 2 * C}, double{kGate})),
                                    .row_weight = stat(pool_.full({R}, 1.0 / double{kGate})),
                                    .dpre = dpre,
                                    .drow_weight = stat_room({R}),
                                    .rounding = of_rows,
                                    .keeps_dpre = true});
  expect_product(dpre, /*repeats=*/2);
}

// As one operand of a gradient of weights, of which the other says which token a row is.
void AnswerCheck::by_tokens(bool of_gradients, bool picks) {
  const int64_t C = m_.width(), E = m_.num_experts(), out = of_gradients ? C : kTokens, in = of_gradients ? kTokens : C;
  const OperandRows rows = picks ? OperandRows{act(scattered(m_.x)), index()} : OperandRows{act(m_.x)};
  const Tensor others = act(tokens()), dw = stat_room({E, out, in});
  ops_.grouped_linear_backward_weight({.x = of_gradients ? OperandRows{others} : rows,
                                       .dy = of_gradients ? rows : OperandRows{others},
                                       .offsets = ints(m_.offsets),
                                       .dw = dw,
                                       .rounding = rounding()});
  const Tensor actual = device_.here(dw);
  size_t first = 0;
  for (int64_t e = 0; e < E; ++e) {
    const int64_t along = blocks(m_.rows_of(e), block());
    for (int64_t col = 0; col < C; ++col) {
      std::vector<AnsweredBlock> column;
      for (int64_t b = 0; b < along; ++b) column.push_back(answer_.blocks[first + static_cast<size_t>(b * C + col)]);
      std::vector<double> of_column;
      for (int64_t token = 0; token < kTokens; ++token) {
        const int64_t at = of_gradients ? col * kTokens + token : token * C + col;
        of_column.push_back(get(actual, e * C * kTokens + at));
      }
      expect_tokens(e, col, column, of_column);
      if (::testing::Test::HasFatalFailure()) return;
    }
    first += static_cast<size_t>(along * C);
  }
  ASSERT_EQ(first, answer_.blocks.size());
}

// One column of an expert's rows, [kTokens] of `actual`. NVFP4's transform is its own inverse but for signs, which come
// last; a one among zeros becomes sixteen quarters by it.
void AnswerCheck::expect_tokens(int64_t expert, int64_t col, const std::vector<AnsweredBlock>& column,
                                const std::vector<double>& actual) {
  constexpr std::array<double, 16> kSigns{1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  const int64_t n = block();
  double nan = 0.0;
  for (const AnsweredBlock& block : column) {
    for (size_t i = 0; i < block.codes.size(); ++i) nan += 0.0 * widened(block, i);
  }
  if (is_nvfp4()) nan += 0.0 * static_cast<double>(answer_.amax[static_cast<size_t>(expert)]);
  for (int64_t token = 0; token < kTokens; ++token) {
    const bool is_there = token < m_.rows_of(expert);
    double expected = m_.rows_of(expert) > 0 ? nan : 0.0, largest = 0.0;
    if (is_there && !is_nvfp4()) {
      expected += widened(column[static_cast<size_t>(token / n)], static_cast<size_t>(token % n));
    } else if (is_there) {
      const AnsweredBlock& block = column[static_cast<size_t>(token / n)];
      for (int64_t k = 0; k < n; ++k) {
        const double value = widened(block, static_cast<size_t>(k)) * factor(expert, 0.25F);
        const bool odd = std::popcount(static_cast<uint64_t>(token % n & k)) % 2 != 0;
        expected += (odd ? -value : value) * kSigns[static_cast<size_t>(token % n)];
        largest = std::max(largest, std::abs(value));
      }
    }
    const double found = actual[static_cast<size_t>(token)];
    if (std::isnan(found) && std::isnan(expected)) continue;
    ASSERT_LE(std::abs(found - expected), 0x1p-18 * largest)
        << fmt::format("{:.10g}, not {:.10g}: ", found, expected)
        << (m_.rows_of(expert) == 0 ? std::string("of no rows")
                                    : where("value", m_.begin(expert) + std::min(token, m_.rows_of(expert) - 1), col));
  }
}

void AnswerCheck::weights() {
  const int64_t E = m_.num_experts(), N = m_.rows_of(0), C = m_.width();
  const Tensor w = act(m_.x).reshape({E, N, C}), y = room({E * C, N});
  std::vector<double> bounds;
  for (int64_t e = 0; e <= E; ++e) bounds.push_back(static_cast<double>(e * C));
  ops_.grouped_linear_forward({.x = act(identities(E, C, C)).reshape({E * C, C}),
                               .w = w,
                               .offsets = ints(pool_.ints({E + 1}, bounds)),
                               .y = y,
                               .rounding = rounding_with(w)});
  expect_weights(y, /*backward=*/false);
}

void AnswerCheck::weights_backward() {
  const int64_t E = m_.num_experts(), N = m_.rows_of(0), C = m_.width();
  const Tensor w = act(m_.x).reshape({E, N, C}), dx = room({E * N, C});
  ops_.grouped_linear_backward_input({.dy = act(identities(E, N, N)).reshape({E * N, N}),
                                      .w = w,
                                      .offsets = ints(m_.offsets),
                                      .dx = dx,
                                      .rounding = rounding_with(w)});
  expect_weights(dx, /*backward=*/true);
}

// Weights [E, N, C] as they are behind products: of which each value is the sum of one of them, and others times 0. A
// product's result is [E * C, N], and backward [E * N, C].
void AnswerCheck::expect_weights(Tensor result, bool backward) {
  const Tensor actual = device_.here(result);
  const int64_t E = m_.num_experts(), N = m_.rows_of(0), C = m_.width(), n = block();
  const auto value = [&](int64_t e, int64_t row, int64_t col) {
    int64_t number = 0, at = 0;
    if (form_.find("tiles") != std::string::npos) {
      number = (e * blocks(N, n) + row / n) * blocks(C, n) + col / n;
      at = row % n * std::min(n, C - col / n * n) + col % n;
    } else if (form_.find("rows") != std::string::npos) {
      number = (e * N + row) * blocks(C, n) + col / n, at = col % n;
    } else {
      number = (e * blocks(N, n) + row / n) * C + col, at = row % n;
    }
    return widened(answer_.blocks[static_cast<size_t>(number)], static_cast<size_t>(at)) * factor(e);
  };
  for (int64_t e = 0; e < E; ++e) {
    for (int64_t i = 0; i < N * C; ++i) {
      const int64_t row = i / C, col = i % C, depth = backward ? N : C;
      double expected = value(e, row, col);
      for (int64_t k = 0; k < depth; ++k) expected += 0.0 * (backward ? value(e, k, col) : value(e, row, k));
      const int64_t at = backward ? (e * N + row) * C + col : (e * C + col) * N + row;
      expect_value(get(actual, at), expected, e * N + row, col, /*in_act=*/true);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace nmoe::test
