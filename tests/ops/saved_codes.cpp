#include "ops/saved_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops/quantize_cases.h"

namespace nmoe::test {
namespace {

class SavedCodes {
 public:
  SavedCodes(AnsweringDevice& device, TensorPool& pool, Activation kind, int64_t hidden, OperandFormat format)
      : device_(device),
        ops_(device.answering_ops()),
        pool_(pool),
        kind_(kind),
        F_(hidden),
        W_(kind == Activation::kSwiGlu ? 2 * hidden : hidden),
        format_(format) {}

  void of_mlp();
  void of_experts();

 private:
  // Experts with 0, 1, 127, 128 and 129 rows, and rows that are nobody's.
  static constexpr int64_t kExperts = 5, kRows = 400, kCount = 385, kWidth = 144;
  static constexpr int64_t kBlocks = kRows / 128 + kExperts;

  Tensor act(Tensor host) { return device_.there(host, device_.act()); }
  Tensor room(int64_t width) { return act(pool_.full({kRows, width}, 7.0)); }
  Tensor bytes(Shape shape) {
    const Tensor x = pool_.zeros(DType::kU8, shape);
    std::ranges::fill(x.span<uint8_t>(), uint8_t{0x55});
    return device_.there(x, DType::kU8);
  }
  RowCodes codes(int64_t width) {
    return {.values = bytes({kRows, width}), .scales = bytes({kRows, (width + 127) / 128})};
  }
  ColumnCodes columns(int64_t width) {
    return {.values = bytes({kBlocks, width, 128}), .scales = bytes({kBlocks, width})};
  }
  // With a row of zeros, and rows with a NaN, an infinity, a subnormal and a large value.
  Tensor rows_with_specials(int64_t width, double scale) {
    const Tensor x = pool_.normal({kRows, width});
    for (int64_t i = 0; i < kRows * width; ++i) set(x, i, get(x, i) * scale);
    for (int64_t j = 0; j < width; ++j) set(x, 2 * width + j, 0.0);
    set(x, 3 * width + 5, std::numeric_limits<double>::quiet_NaN());
    set(x, 140 * width + 6, std::numeric_limits<double>::infinity());
    set(x, 141 * width + 7, 1e-40);
    set(x, 260 * width + 8, 3e4);
    return x;
  }
  OperandRounding rounding(Tensor w) {
    return format_ == OperandFormat::kAct ? OperandRounding{} : device_.of_weight(format_, w);
  }
  // Of codes that both may have made; those of what is not finite may differ.
  void expect_same(const RowCodes& actual, const RowCodes& expected, int64_t count) {
    const int64_t width = expected.values.dim(1), across = expected.scales.dim(1);
    const Tensor values = device_.here(actual.values), scales = device_.here(actual.scales),
                 known_values = device_.here(expected.values), known_scales = device_.here(expected.scales);
    int64_t different = 0;
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t block = 0; block < across; ++block) {
        const uint8_t scale = known_scales.data<uint8_t>()[row * across + block];
        different += scales.data<uint8_t>()[row * across + block] != scale ? 1 : 0;
        for (int64_t i = block * 128; scale != 0xFF && i < std::min(width, block * 128 + 128); ++i) {
          different += values.data<uint8_t>()[row * width + i] != known_values.data<uint8_t>()[row * width + i] ? 1 : 0;
        }
      }
    }
    EXPECT_EQ(different, 0) << "codes and scales of " << count << " rows of " << width;
  }
  void expect_same(const ColumnCodes& actual, const ColumnCodes& expected) {
    EXPECT_EQ(bytes_of(device_.here(actual.scales)), bytes_of(device_.here(expected.scales)));
    const std::vector<uint8_t> scales = bytes_of(device_.here(expected.scales)),
                               values = bytes_of(device_.here(actual.values)),
                               known = bytes_of(device_.here(expected.values));
    int64_t different = 0;
    for (size_t i = 0; i < known.size(); ++i) different += scales[i / 128] != 0xFF && values[i] != known[i] ? 1 : 0;
    EXPECT_EQ(different, 0);
  }
  void expect_same(Tensor actual, Tensor expected, int64_t count) {
    EXPECT_TRUE(same_bits(device_.here(actual).rows(0, count), device_.here(expected).rows(0, count)));
  }
  RowCodes quantized(Tensor x, Tensor num_rows) {
    const RowCodes made = codes(x.dim(1));
    ops_.quantize(quantize_rows(x, made, num_rows));
    return made;
  }
  Tensor widened(const RowCodes& codes, Tensor num_rows) {
    const Tensor x = room(W_);
    ops_.widen_rows({.codes = codes, .x = x, .num_rows = num_rows});
    return x;
  }

  AnsweringDevice& device_;
  Ops& ops_;
  TensorPool& pool_;
  Activation kind_;
  int64_t F_, W_;
  OperandFormat format_;
};

void SavedCodes::of_mlp() {
  const Tensor x = act(rows_with_specials(kWidth, 1.0)), w = pool_.normal({W_, kWidth});
  for (int64_t i = 0; i < w.num_elements(); ++i) set(w, i, 0.1 * get(w, i));
  const Tensor weight = act(w), pre = room(W_), h = room(F_), unused = room(W_), same_h = room(F_);
  const RowCodes pre_codes = codes(W_), h_codes = codes(F_), same_h_codes = codes(F_);
  LinearActivationForward args{
      .kind = kind_, .x = x, .w = weight, .pre = pre, .h = h, .h_codes = h_codes, .rounding = rounding(weight)};
  ops_.linear_activation_forward(args);
  args.pre = unused, args.h = same_h, args.h_codes = same_h_codes, args.pre_codes = pre_codes;
  ops_.linear_activation_forward(args);
  expect_same(pre_codes, quantized(pre, {}), kRows);
  expect_same(same_h, h, kRows);
  expect_same(same_h_codes, h_codes, kRows);
  args.h = room(F_), args.h_codes = codes(F_), args.keeps_h = false;
  ops_.linear_activation_forward(args);
  expect_same(args.h_codes, h_codes, kRows);

  const Tensor dh = act(rows_with_specials(F_, 1e-3)), dpre = room(W_), made = room(F_), same_dpre = room(W_),
               same_made = room(F_);
  const RowCodes dpre_codes = codes(W_), same_dpre_codes = codes(W_);
  ops_.activation_backward(
      {.kind = kind_, .pre = widened(pre_codes, {}), .dh = dh, .dpre = dpre, .dpre_codes = dpre_codes, .h = made});
  ops_.activation_backward({.kind = kind_,
                            .pre = same_dpre,
                            .dh = dh,
                            .dpre = same_dpre,
                            .dpre_codes = same_dpre_codes,
                            .h = same_made,
                            .pre_codes = pre_codes});
  expect_same(same_dpre, dpre, kRows);
  expect_same(same_made, made, kRows);
  expect_same(same_dpre_codes, dpre_codes, kRows);
}

void SavedCodes::of_experts() {
  const Tensor offsets = device_.there(pool_.ints({kExperts + 1}, {0, 0, 1, 128, 256, kCount}), DType::kI32),
               count = offsets.rows(kExperts, kExperts + 1),
               row_weight = device_.there(pool_.normal({kRows}), DType::kF32);
  const auto weights = [&](Shape shape) {
    const Tensor w = pool_.normal(shape);
    for (int64_t i = 0; i < w.num_elements(); ++i) set(w, i, 0.1 * get(w, i));
    return act(w);
  };
  const Tensor x = act(rows_with_specials(kWidth, 1.0)), w_in = weights({kExperts, W_, kWidth}),
               w_out = weights({kExperts, kWidth, F_});
  const OperandRounding in = rounding(w_in), out = rounding(w_out);
  const Tensor pre = room(W_), h = room(F_), same_h = room(F_);
  const RowCodes pre_codes = codes(W_), h_codes = codes(F_), same_h_codes = codes(F_);
  GroupedActivationForward forward{.kind = kind_,
                                   .x = x,
                                   .w = w_in,
                                   .offsets = offsets,
                                   .row_weight = row_weight,
                                   .pre = pre,
                                   .h = h,
                                   .rounding = in,
                                   .h_codes = h_codes};
  ops_.grouped_activation_forward(forward);
  const RowCodes expected_codes = quantized(pre, count);
  forward.h = same_h, forward.h_codes = same_h_codes, forward.pre_codes = pre_codes;
  for (const bool keeps : {true, false}) {
    forward.keeps_h = keeps;
    forward.pre = room(W_);
    ops_.grouped_activation_forward(forward);
    expect_same(pre_codes, expected_codes, kCount);
    if (keeps) expect_same(same_h, h, kCount);
    expect_same(same_h_codes, h_codes, kCount);
  }
  forward.pre = {};
  forward.pre_codes = codes(W_), forward.h_codes = codes(F_);
  ops_.grouped_activation_forward(forward);
  expect_same(forward.pre_codes, expected_codes, kCount);
  expect_same(forward.h_codes, h_codes, kCount);

  const bool with_columns = format_ == OperandFormat::kFp8;
  const Tensor dy = act(rows_with_specials(kWidth, 1e-3)), dpre = room(W_), same_dpre = room(W_), made = room(F_),
               same_made = room(F_), drow_weight = device_.there(pool_.full({kRows}, 7.0), DType::kF32),
               same_drow_weight = device_.there(pool_.full({kRows}, 7.0), DType::kF32);
  const RowCodes dpre_codes = codes(W_), same_dpre_codes = codes(W_);
  GroupedActivationBackward backward{.kind = kind_,
                                     .dy = dy,
                                     .w = w_out,
                                     .offsets = offsets,
                                     .pre = widened(pre_codes, count),
                                     .row_weight = row_weight,
                                     .dpre = dpre,
                                     .drow_weight = drow_weight,
                                     .rounding = out,
                                     .dpre_codes = dpre_codes,
                                     .h = made};
  ops_.grouped_activation_backward(backward);
  backward.pre = backward.dpre = same_dpre;
  backward.drow_weight = same_drow_weight;
  backward.dpre_codes = same_dpre_codes;
  backward.h = same_made;
  backward.pre_codes = pre_codes;
  ops_.grouped_activation_backward(backward);
  expect_same(same_dpre, dpre, kCount);
  expect_same(same_made, made, kCount);
  expect_same(same_drow_weight, drow_weight, kCount);
  expect_same(same_dpre_codes, dpre_codes, kCount);
  backward.pre = {}, backward.dpre = room(W_);
  ops_.grouped_activation_backward(backward);
  expect_same(backward.dpre, dpre, kCount);
  if (!with_columns) return;

  // With codes of columns, and nothing else.
  const ColumnCodes dpre_columns = columns(W_), same_dpre_columns = columns(W_), h_columns = columns(F_),
                    same_h_columns = columns(F_);
  backward.pre = widened(pre_codes, count), backward.dpre = room(W_);
  backward.pre_codes = {}, backward.h = {};
  backward.dpre_columns = dpre_columns;
  ops_.activation_forward({.kind = kind_,
                           .pre = backward.pre,
                           .row_weight = row_weight,
                           .h = {},
                           .num_rows = count,
                           .h_columns = h_columns,
                           .offsets = offsets});
  ops_.grouped_activation_backward(backward);
  backward.pre = backward.dpre = room(W_);
  backward.pre_codes = pre_codes, backward.h_columns = same_h_columns, backward.dpre_columns = same_dpre_columns;
  for (const bool keeps : {true, false}) {
    backward.keeps_dpre = keeps;
    ops_.grouped_activation_backward(backward);
    if (keeps) expect_same(backward.dpre, dpre, kCount);
    expect_same(same_drow_weight, drow_weight, kCount);
    expect_same(same_dpre_codes, dpre_codes, kCount);
    expect_same(same_dpre_columns, dpre_columns);
    expect_same(same_h_columns, h_columns);
  }
  // Without memory for any values; and those of pre alone, which may be lost then.
  for (const Tensor& values : {Tensor(), widened(pre_codes, count)}) {
    backward.pre = values, backward.dpre = {};
    backward.pre_codes = values.defined() ? RowCodes{} : pre_codes;
    backward.dpre_codes = codes(W_);
    backward.h_columns = values.defined() ? ColumnCodes{} : columns(F_);
    backward.dpre_columns = columns(W_);
    backward.drow_weight = device_.there(pool_.full({kRows}, 7.0), DType::kF32);
    ops_.grouped_activation_backward(backward);
    expect_same(backward.drow_weight, drow_weight, kCount);
    expect_same(backward.dpre_codes, dpre_codes, kCount);
    expect_same(backward.dpre_columns, dpre_columns);
    if (backward.h_columns.defined()) expect_same(backward.h_columns, h_columns);
  }
  // The gradient of rows reads codes alone,
  GroupedLinearBackwardInput of_rows{.dy = dpre, .w = w_in, .offsets = offsets, .dx = room(kWidth), .rounding = in};
  of_rows.rounding.rows = dpre_codes;
  ops_.grouped_linear_backward_input(of_rows);
  const Tensor dx = of_rows.dx;
  of_rows.dy = {}, of_rows.dx = room(kWidth);
  ops_.grouped_linear_backward_input(of_rows);
  expect_same(of_rows.dx, dx, kCount);
  // and that of the first weight columns.
  const Tensor dw = device_.there(pool_.full({kExperts, W_, kWidth}, 7.0), DType::kF32),
               same_dw = device_.there(pool_.full({kExperts, W_, kWidth}, 7.0), DType::kF32);
  GroupedLinearBackwardWeight gradient{
      .x = x, .dy = dpre, .offsets = offsets, .dw = dw, .rounding = {.format = format_}, .dy_columns = dpre_columns};
  ops_.grouped_linear_backward_weight(gradient);
  gradient.dy = {}, gradient.dw = same_dw;
  ops_.grouped_linear_backward_weight(gradient);
  expect_same(same_dw, dw, kExperts);
}

}  // namespace

void expect_saved_codes(AnsweringDevice& device, TensorPool& pool, Activation kind, int64_t hidden,
                        OperandFormat format) {
  SavedCodes check(device, pool, kind, hidden, format);
  check.of_mlp();
  check.of_experts();
}

}  // namespace nmoe::test
