// Gradients of weights from FP8 operands on Hopper: columns' codes against their definition, the product against the
// bit model of tensor cores, and both against the CPU.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cuda/kernels/low_precision/quantize_fp8.h"
#include "ops/cuda/kernels/low_precision/quantize_fp8_columns.h"
#include "ops/cuda/rounded_experts.h"
#include "ops/cuda/runtime/cuda_ops.h"
#include "ops/cuda/sm90/grouped_fp8_weight.h"
#include "ops/row_of.h"
#include "ops/signal_to_noise.h"
#include "ops/squares.h"
#include "ops/tensor_core_model.h"

namespace nmoe::test {
namespace {

constexpr int64_t kBlock = 128;

class CudaFp8Weight : public CudaRoundedTest {
 protected:
  explicit CudaFp8Weight(int num_sms = 0) : CudaRoundedTest(num_sms) {}
  cuda::Context& context() { return static_cast<cuda::CudaOps&>(gpu()).context(); }
  ColumnCodes room_for_columns(int64_t rows, int64_t width, int64_t groups) {
    const int64_t blocks = rows / kBlock + groups;
    return {.values = bytes({blocks, width, kBlock}), .scales = bytes({blocks, width})};
  }
  void expect_columns(int64_t C);
  void expect_bit_model(const std::vector<double>& bounds, int64_t R, int64_t out, int64_t in, bool accumulate);
  void expect_codes_of_experts();
};
// Two multiprocessors, so that each block has many tiles.
class CudaFp8WeightFewSms : public CudaFp8Weight {
 protected:
  CudaFp8WeightFewSms() : CudaFp8Weight(2) {}
};

// Widths that end within a tile of 128 columns, with a whole strip of four tiles, and within the third strip.
TEST_F(CudaFp8Weight, ColumnsHaveTheirDefinition) {
  for (const int64_t C : {16, 272, 512, 1168}) {
    SCOPED_TRACE(C);
    expect_columns(C);
  }
}

void CudaFp8Weight::expect_columns(int64_t C) {
  const int64_t R = 700, T = 300;
  const std::vector<double> bounds{0, 0, 300, 300, 301, 557, 690};
  const int64_t G = std::ssize(bounds) - 1;
  const Tensor tokens = normal({T, C}, DType::kBF16);
  const float odd[] = {0.0F, -0.0F, 448.0F, 449.0F, 1e-39F, 3e38F, -1e-30F};
  for (int64_t i = 0; i < T * C; i += 7) set(tokens, i, static_cast<double>(odd[i / 7 % 7]));
  rounded(tokens, DType::kBF16);
  set(tokens, 5 * C + 3, std::numeric_limits<double>::quiet_NaN());
  set(tokens, 9 * C + C * 3 / 4, std::numeric_limits<double>::infinity());
  for (int64_t row = 0; row < T; ++row) {
    set(tokens, row * C + 13, 0.0);
    set(tokens, row * C + 10, static_cast<double>(row % 7 - 3) * 0x1p-130);  // below the least normal number
    set(tokens, row * C + 11, static_cast<double>(row % 7 - 3) * 0x1p+126);
  }
  std::vector<double> picks;
  for (int64_t i = 0; i < R; ++i) picks.push_back(static_cast<double>(i * 7 % T));
  const Tensor offsets = up(pool_.ints({G + 1}, bounds)), device_tokens = up(tokens, DType::kBF16);
  for (const bool picked : {true, false}) {
    const int64_t num_rows = picked ? R : T, groups = picked ? G : 1;
    const Tensor of_groups = picked ? offsets : up(pool_.ints({2}, {0, T}));
    const OperandRows x = picked ? OperandRows(device_tokens, up(pool_.ints({R}, picks))) : OperandRows(device_tokens);
    const ColumnCodes columns = room_for_columns(num_rows, C, groups);
    cuda::quantize_fp8_columns(context(), x, of_groups, columns);
    const Tensor expected = pool_.zeros(DType::kU8, columns.values.shape()),
                 expected_scales = pool_.zeros(DType::kU8, columns.scales.shape());
    std::ranges::fill(expected.span<uint8_t>(), uint8_t{0x55});
    std::ranges::fill(expected_scales.span<uint8_t>(), uint8_t{0x55});
    const auto value = [&](int64_t row, int64_t col) {
      const int64_t source = picked ? static_cast<int64_t>(picks[static_cast<size_t>(row)]) : row;
      return static_cast<float>(get(tokens, source * C + col));
    };
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = picked ? static_cast<int64_t>(bounds[static_cast<size_t>(g)]) : 0,
                    end = picked ? static_cast<int64_t>(bounds[static_cast<size_t>(g) + 1]) : T;
      for (int64_t first = begin; first < end; first += kBlock) {
        const int64_t block = begin / kBlock + g + (first - begin) / kBlock;
        for (int64_t col = 0; col < C; ++col) {
          uint32_t bits = 0;
          const int64_t last = std::min(first + kBlock, end);
          for (int64_t row = first; row < last; ++row) bits = std::max(bits, magnitude_bits(value(row, col)));
          const uint8_t scale = e8m0_scale(amax_of_bits(bits));
          expected_scales.data<uint8_t>()[block * C + col] = scale;
          uint8_t* const codes = expected.data<uint8_t>() + (block * C + col) * kBlock;
          for (int64_t i = 0; i < kBlock; ++i) {
            const float of_row = first + i < last ? value(first + i, col) : 0.0F;
            codes[i] = float_to_e4m3(of_row * e8m0_to_inverse(scale));
          }
        }
      }
    }
    // A NaN has no one code.
    const auto plain = [](const Tensor& codes) {
      for (uint8_t& code : codes.span<uint8_t>()) code = (code & 0x7F) == 0x7F ? uint8_t{0x7F} : code;
      return codes;
    };
    EXPECT_TRUE(same_bits(plain(down(columns.values)), plain(expected)));
    EXPECT_TRUE(same_bits(down(columns.scales), expected_scales));
  }
}

// Codes of rows that an index picks, of widths around what a warp has (2,048 codes). Some rows are picked once, some
// more often than a warp has lanes, and most not at all in the end: row_of ends with -1, or begins with it. Rows that
// nothing picks keep what they had.
TEST_F(CudaFp8Weight, PickedCodesAreThoseOfTheirRows) {
  const int64_t T = 50, R = 100;
  std::vector<double> picks;
  for (int64_t i = 0; i < R; ++i) picks.push_back(static_cast<double>(i < 60 ? i * 7 % T : 3));
  const Tensor index = pool_.ints({R}, picks), device_index = up(index);
  for (const int64_t C : {16, 144, 512, 2048, 2064, 4112}) {
    const int64_t across = fp8_blocks(C);
    const Tensor x = up(normal({T, C}, DType::kBF16), DType::kBF16);
    const RowCodes codes = room_for_codes(T, C);
    cuda::quantize_fp8_rows(context(), x, /*num_rows=*/{}, codes);
    const Tensor values = down(codes.values), scales = down(codes.scales);
    for (const int64_t count : {0, 1, 57, 97, 100}) {
      const RowCodes room = room_for_codes(R, C);
      const RowCodes expected{.values = down(room.values), .scales = down(room.scales)};
      for (int64_t row = 0; row < count; ++row) {
        const auto source = static_cast<int64_t>(picks[static_cast<size_t>(row)]);
        std::copy_n(values.data<uint8_t>() + source * C, C, expected.values.data<uint8_t>() + row * C);
        std::copy_n(scales.data<uint8_t>() + source * across, across, expected.scales.data<uint8_t>() + row * across);
      }
      const Tensor copies = row_of(pool_, index, count, T);
      for (int64_t token = 1; token < T; token += 2) {
        std::ranges::reverse(copies.rows(token, token + 1).span<int32_t>());
      }
      const RowCodes picked =
          cuda::product_codes(context(), {.format = OperandFormat::kFp8, .rows = codes}, {x, device_index, up(copies)},
                              up(pool_.ints({1}, {static_cast<double>(count)})), room);
      EXPECT_TRUE(same_bits(down(picked.values), expected.values)) << C << " " << count;
      EXPECT_TRUE(same_bits(down(picked.scales), expected.scales)) << C << " " << count;
    }
  }
}

TEST_F(CudaFp8Weight, ActivationsLeaveColumns) {
  const int64_t E = 4, R = 1000;
  const ExpertRows of = expert_rows(R, 300);
  const Tensor offsets = up(of.offsets), row_weight = up(of.row_weight), count = offsets.rows(E, E + 1);
  for (const int64_t F : {128, 112, 272, 656}) {
    for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
      const int64_t W = kind == Activation::kSwiGlu ? 2 * F : F;
      const Tensor host_pre = normal({R, W}, DType::kBF16), h = poisoned({R, F});
      set_specials(host_pre);
      set_specials(host_pre.rows(504, 512), 3);  // of an expert with few rows
      const Tensor pre = up(host_pre, DType::kBF16);
      const ColumnCodes actual = room_for_columns(R, F, E), expected = room_for_columns(R, F, E);
      gpu().activation_forward({.kind = kind, .pre = pre, .row_weight = row_weight, .h = h, .num_rows = count});
      cuda::quantize_fp8_columns(context(), h, offsets, expected);
      gpu().activation_forward({.kind = kind,
                                .pre = pre,
                                .row_weight = row_weight,
                                .h = {},
                                .num_rows = count,
                                .h_columns = actual,
                                .offsets = offsets});
      EXPECT_TRUE(same_codes(down(actual.values), down(expected.values)));
      EXPECT_TRUE(same_bits(down(actual.scales), down(expected.scales)));
    }
  }
}

// Experts' activations leave codes alone, of rows and of columns: those of what they would have left in BF16.
TEST_F(CudaFp8Weight, ExpertsLeaveColumns) { expect_codes_of_experts(); }
TEST_F(CudaFp8WeightFewSms, ExpertsLeaveColumns) { expect_codes_of_experts(); }

void CudaFp8Weight::expect_codes_of_experts() {
  const int64_t E = 4, R = 1000, D = 208;
  const ExpertRows of = expert_rows(R, 300);
  const Tensor offsets = up(of.offsets), row_weight = up(of.row_weight);
  const Tensor rows = normal({R, D}, DType::kBF16);
  const Tensor gradients = normal({R, D}, DType::kBF16, 1e-3);
  for (int64_t i = 0; i < R * D; i += 97) set(rows, i, i % 2 == 0 ? 3e4 : -1e-30);
  set_specials(rows.rows(128, 136));
  set_specials(gradients.rows(504, 512), 3);  // of an expert with few rows
  const Tensor x = up(rounded(rows, DType::kBF16), DType::kBF16),
               dy = up(rounded(gradients, DType::kBF16), DType::kBF16);
  const auto expect_same = [&](const auto& actual, const auto& expected) {
    EXPECT_TRUE(same_codes(down(actual.values), down(expected.values)));
    EXPECT_TRUE(same_bits(down(actual.scales), down(expected.scales)));
  };
  for (const auto& [kind, F] : hidden_layers({128, 384, 112})) {
    SCOPED_TRACE(fmt::format("activation {}, {} hidden units", static_cast<int>(kind), F));
    const int64_t W = activation_parts(kind) * F;
    const Tensor w_in = up(normal({E, W, D}, DType::kBF16, 0.05), DType::kBF16),
                 w_out = up(normal({E, D, F}, DType::kBF16, 0.05), DType::kBF16);
    const OperandRounding in = rounding(w_in), out = rounding(w_out);
    const Tensor pre = poisoned({R, W}), h = poisoned({R, F}), same_pre = poisoned({R, W});
    const RowCodes h_rows = room_for_codes(R, F), same_h_rows = room_for_codes(R, F);
    const ColumnCodes h_columns = room_for_columns(R, F, E), same_h_columns = room_for_columns(R, F, E);
    gpu().grouped_activation_forward({.kind = kind,
                                      .x = x,
                                      .w = w_in,
                                      .offsets = offsets,
                                      .row_weight = row_weight,
                                      .pre = pre,
                                      .h = h,
                                      .rounding = in,
                                      .h_codes = h_rows});
    cuda::quantize_fp8_columns(context(), h, offsets, h_columns);
    gpu().grouped_activation_forward({.kind = kind,
                                      .x = x,
                                      .w = w_in,
                                      .offsets = offsets,
                                      .row_weight = row_weight,
                                      .pre = same_pre,
                                      .h = {},
                                      .rounding = in,
                                      .h_codes = same_h_rows,
                                      .h_columns = same_h_columns});
    EXPECT_TRUE(same_bits(down(same_pre), down(pre)));
    expect_same(same_h_rows, h_rows);
    expect_same(same_h_columns, h_columns);

    const Tensor dpre = poisoned({R, W}), drow_weight = up(pool_.full({R}, 7.0));
    const RowCodes d_rows = room_for_codes(R, W);
    const ColumnCodes d_columns = room_for_columns(R, W, E);
    const Tensor made = poisoned({R, F}), expected_made = poisoned({R, F});
    gpu().activation_forward(
        {.kind = kind, .pre = pre, .row_weight = row_weight, .h = expected_made, .num_rows = offsets.rows(E, E + 1)});
    gpu().grouped_activation_backward({.kind = kind,
                                       .dy = dy,
                                       .w = w_out,
                                       .offsets = offsets,
                                       .pre = pre,
                                       .row_weight = row_weight,
                                       .dpre = dpre,
                                       .drow_weight = drow_weight,
                                       .rounding = out,
                                       .dpre_codes = d_rows,
                                       .h = made});
    EXPECT_TRUE(same_bits(down(made), down(expected_made)));
    cuda::quantize_fp8_columns(context(), dpre, offsets, d_columns);
    for (const bool keeps : {true, false}) {
      const Tensor same_dpre = poisoned({R, W}), same_drow_weight = up(pool_.full({R}, 7.0));
      const RowCodes same_rows = room_for_codes(R, W);
      const ColumnCodes same_columns = room_for_columns(R, W, E);
      gpu().grouped_activation_backward({.kind = kind,
                                         .dy = dy,
                                         .w = w_out,
                                         .offsets = offsets,
                                         .pre = pre,
                                         .row_weight = row_weight,
                                         .dpre = same_dpre,
                                         .drow_weight = same_drow_weight,
                                         .rounding = out,
                                         .dpre_codes = same_rows,
                                         .dpre_columns = same_columns,
                                         .keeps_dpre = keeps});
      EXPECT_TRUE(!keeps || same_bits(down(same_dpre), down(dpre)));
      EXPECT_TRUE(same_bits(down(same_drow_weight), down(drow_weight)));
      expect_same(same_rows, d_rows);
      expect_same(same_columns, d_columns);
    }
  }
}

// The products in BF16 would not look at them.
TEST_F(CudaFp8Weight, ColumnsComeWithFp8Alone) {
  const Tensor x = poisoned({16, 16}), offsets = up(pool_.ints({2}, {0, 16})), dw = up(pool_.zeros({1, 16, 16}));
  const ColumnCodes columns = room_for_columns(16, 16, 1);
  EXPECT_THROW(
      gpu().grouped_linear_backward_weight({.x = x, .dy = x, .offsets = offsets, .dw = dw, .x_columns = columns}),
      CheckFailure);
  EXPECT_THROW(
      gpu().grouped_linear_backward_weight({.x = x, .dy = x, .offsets = offsets, .dw = dw, .dy_columns = columns}),
      CheckFailure);
}

// Columns that come along are as good as rows, on either device, and a gradient needs no x beside its own.
TEST_F(CudaFp8Weight, GradientsTakeColumns) {
  const int64_t E = 4, R = 1000, in = 144, out = 272;
  const ExpertRows of = expert_rows(R, 300);
  const Tensor x = normal({R, in}, DType::kBF16), dy = normal({R, out}, DType::kBF16, 1e-3), offsets = up(of.offsets),
               device_x = up(x, DType::kBF16), device_dy = up(dy, DType::kBF16);
  const ColumnCodes x_columns = room_for_columns(R, in, E);
  cuda::quantize_fp8_columns(context(), device_x, offsets, x_columns);
  const Tensor zeros = pool_.zeros({E, out, in}), from_rows = up(zeros), from_columns = up(zeros),
               on_cpu = pool_.zeros({E, out, in}), on_cpu_from_rows = pool_.zeros({E, out, in});
  constexpr OperandRounding kRounding{.format = OperandFormat::kFp8};
  run([&](Ops& ops) {
    ops.grouped_linear_backward_weight(
        {.x = device_x, .dy = device_dy, .offsets = offsets, .dw = from_rows, .rounding = kRounding});
    ops.grouped_linear_backward_weight({.x = Tensor(),
                                        .dy = device_dy,
                                        .offsets = offsets,
                                        .dw = from_columns,
                                        .rounding = kRounding,
                                        .x_columns = x_columns});
  });
  EXPECT_TRUE(same_bits(down(from_columns), down(from_rows)));
  cpu().grouped_linear_backward_weight(
      {.x = Tensor(),
       .dy = dy,
       .offsets = of.offsets,
       .dw = on_cpu,
       .rounding = kRounding,
       .x_columns = {.values = down(x_columns.values), .scales = down(x_columns.scales)}});
  cpu().grouped_linear_backward_weight(
      {.x = x, .dy = dy, .offsets = of.offsets, .dw = on_cpu_from_rows, .rounding = kRounding});
  EXPECT_TRUE(same_bits(on_cpu, on_cpu_from_rows));
}

// Blocks of 128 rows by the model, times both scales, added in fp32. Every value of some rows of dw.
void CudaFp8Weight::expect_bit_model(const std::vector<double>& bounds, int64_t R, int64_t out, int64_t in,
                                     bool accumulate) {
  const int64_t E = std::ssize(bounds) - 1, blocks = R / kBlock + E;
  const auto random_codes = [&](Shape shape, uint64_t stream) {
    const Tensor x = pool_.zeros(DType::kU8, shape);
    const Philox rng(17, stream);
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      const uint8_t code = float_to_e4m3(100 * static_cast<float>(rng.normal(static_cast<uint64_t>(i))));
      x.data<uint8_t>()[i] = (code & 0x7F) == 0x7F ? uint8_t{0} : code;
    }
    return x;
  };
  const auto scales = [&](Shape shape, int least) {
    const Tensor x = pool_.zeros(DType::kU8, shape);
    for (int64_t i = 0; i < x.num_elements(); ++i) x.data<uint8_t>()[i] = static_cast<uint8_t>(least + 5 * i % 7);
    return x;
  };
  const Tensor x = random_codes({blocks, in, kBlock}, 1), dy = random_codes({blocks, out, kBlock}, 2),
               x_scales = scales({blocks, in}, 117), dy_scales = scales({blocks, out}, 113);
  const Tensor before = pool_.normal({E, out, in}, 100.0), dw = up(before);
  const Tensor squares = up(poisoned_squares(pool_, dw.shape()));
  const Tensor order = tensors_.allocate(DType::kI32, {E}), counters = tensors_.allocate(DType::kI32, {1});
  cuda::sm90::grouped_fp8_weight(context(), {.x = {.values = up(x), .scales = up(x_scales)},
                                             .dy = {.values = up(dy), .scales = up(dy_scales)},
                                             .num_rows = R,
                                             .offsets = up(pool_.ints({E + 1}, bounds)),
                                             .order = {.order = order, .counters = counters},
                                             .dw = dw,
                                             .accumulate = accumulate,
                                             .squares = accumulate ? Tensor() : squares});
  const Tensor actual = down(dw);
  if (!accumulate) expect_squares(down(squares), actual, 2e-6);  // 16 are added in F32
  const auto codes_of = [](const Tensor& of, int64_t row) {
    return std::span<const uint8_t>(of.data<uint8_t>() + row * kBlock, static_cast<size_t>(kBlock));
  };
  for (int64_t e = 0; e < E; ++e) {
    const auto begin = static_cast<int64_t>(bounds[static_cast<size_t>(e)]),
               end = static_cast<int64_t>(bounds[static_cast<size_t>(e) + 1]);
    const int64_t first = begin / kBlock + e, count = (end - begin + kBlock - 1) / kBlock;
    for (int64_t row = 0; row < out; row += row % 64 == 63 ? 1 : 21) {
      for (int64_t col = 0; col < in; ++col) {
        float total = 0.0F;
        for (int64_t block = first; block < first + count; ++block) {
          const float sum = hopper_e4m3_dot(codes_of(dy, block * out + row), codes_of(x, block * in + col));
          const float scale = e8m0_to_float(dy_scales.data<uint8_t>()[block * out + row]) *
                              e8m0_to_float(x_scales.data<uint8_t>()[block * in + col]);
          total = std::fma(sum, scale, total);
        }
        const int64_t at = (e * out + row) * in + col;
        const float expected = accumulate ? before.data<float>()[at] + total : total;
        ASSERT_EQ(actual.data<float>()[at], expected) << "group " << e << ", row " << row << ", column " << col;
      }
    }
  }
  tensors_.rewind(0);
}

TEST_F(CudaFp8Weight, ProductIsTheBitModel) {
  expect_bit_model({0, 0, 300, 300, 301, 470}, 512, 208, 144, /*accumulate=*/false);
  expect_bit_model({0, 0, 300, 300, 301, 470}, 512, 208, 144, /*accumulate=*/true);
  expect_bit_model({0, 0, 0}, 16, 16, 16, /*accumulate=*/false);
  expect_bit_model({0, 1000}, 1000, 272, 80, /*accumulate=*/true);
  expect_bit_model({0, 128}, 128, 64, 400, /*accumulate=*/false);
}
TEST_F(CudaFp8WeightFewSms, ProductIsTheBitModel) {
  expect_bit_model({0, 200, 1000, 1000, 1090, 1200}, 1300, 400, 272, /*accumulate=*/false);
  expect_bit_model({0, 700}, 700, 528, 272, /*accumulate=*/true);
}

// Sums that keep 13 bits leave some 60 dB.
constexpr double kLeastWeightRatio = 50;
constexpr OperandRounding kFp8Rounding{.format = OperandFormat::kFp8};

TEST_F(CudaFp8Weight, GradientsOfExpertsAreThoseOfTheCpu) {
  const int64_t E = 4, R = 1000, T = 300, in = 144, out = 272;
  const ExpertRows of = expert_rows(R, T);
  const Tensor offsets = up(of.offsets), index = up(of.index);
  for (const bool picks_x : {false, true}) {
    const Tensor x = normal({picks_x ? T : R, in}, DType::kBF16),
                 dy = normal({picks_x ? R : T, out}, DType::kBF16, 1e-3), expected = pool_.normal({E, out, in}, 1e-2);
    const Tensor device_x = up(x, DType::kBF16), device_dy = up(dy, DType::kBF16), dw = up(expected);
    for (const bool accumulate : {true, false}) {
      run([&](Ops& ops) {
        ops.grouped_linear_backward_weight({.x = {device_x, picks_x ? index : Tensor()},
                                            .dy = {device_dy, picks_x ? Tensor() : index},
                                            .offsets = offsets,
                                            .dw = dw,
                                            .accumulate = accumulate,
                                            .rounding = kFp8Rounding});
      });
      cpu().grouped_linear_backward_weight({.x = {x, picks_x ? of.index : Tensor()},
                                            .dy = {dy, picks_x ? Tensor() : of.index},
                                            .offsets = of.offsets,
                                            .dw = expected,
                                            .accumulate = accumulate,
                                            .rounding = kFp8Rounding});
      EXPECT_GT(signal_to_noise(down(dw), expected), kLeastWeightRatio) << picks_x << accumulate;
    }
  }
}

}  // namespace
}  // namespace nmoe::test
