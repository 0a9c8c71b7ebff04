// Products of FP8 operands on Hopper against the bit model of its tensor cores.
#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/cuda/fp8_wgmma.h"
#include "ops/cuda/rounded_experts.h"
#include "ops/cuda/runtime/cuda_ops.h"
#include "ops/cuda/sm90/grouped_fp8.h"
#include "ops/quantize_cases.h"
#include "ops/row_of.h"
#include "ops/signal_to_noise.h"
#include "ops/tensor_core_model.h"

namespace nmoe::test {
namespace {

// Of the last dimension, `count` codes of row `index` from `first` on.
std::span<const uint8_t> part(Tensor x, int64_t index, int64_t first, int64_t count) {
  return {x.data<uint8_t>() + index * x.dim(-1) + first, static_cast<size_t>(count)};
}

// Operands of a grouped product, with scales, and what comes of them.
struct GroupedProduct {
  Tensor x, w, x_scales, w_scales, offsets;
  Tensor y;  // of the device

  // By the model: blocks of 128 of k, times their scales, added in fp32, and rounded to BF16.
  double expected(int64_t expert, int64_t row, int64_t col) const {
    const int64_t N = w.dim(1), K = w.dim(2), k_blocks = x_scales.dim(1), col_blocks = w_scales.dim(1);
    float total = 0.0F;
    for (int64_t block = 0; block < k_blocks; ++block) {
      const int64_t first = block * 128, count = std::min<int64_t>(128, K - first);
      const float sum = hopper_e4m3_dot(part(x, row, first, count), part(w, expert * N + col, first, count));
      const float scale = e8m0_to_float(x_scales.data<uint8_t>()[row * k_blocks + block]) *
                          e8m0_to_float(w_scales.data<uint8_t>()[(expert * col_blocks + col / 128) * k_blocks + block]);
      total = std::fma(sum, scale, total);
    }
    return static_cast<double>(bf16_to_float(float_to_bf16(total)));
  }
};

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
  // R rows, all offsets within them.
  GroupedProduct grouped_product(const std::vector<double>& bounds, int64_t R, int64_t N, int64_t K) {
    const int64_t E = std::ssize(bounds) - 1, k_blocks = (K + 127) / 128, col_blocks = (N + 127) / 128;
    GroupedProduct product{.x = codes({R, K}, false),
                           .w = codes({E, N, K}, false),
                           .x_scales = scales({R, k_blocks}, 117),
                           .w_scales = scales({E, col_blocks, k_blocks}, 113),
                           .offsets = pool_.ints({E + 1}, bounds),
                           .y = {}};
    const Tensor y = tensors_.allocate(DType::kBF16, {R, N});
    gpu().fill({.x = y, .value = 7.0});
    cuda::sm90::grouped_fp8(static_cast<cuda::CudaOps&>(gpu()).context(),
                            {.x = {.values = up(product.x), .scales = up(product.x_scales)},
                             .w = up(product.w),
                             .w_scales = up(product.w_scales),
                             .offsets = up(product.offsets),
                             .y = y,
                             .addend = {}});
    product.y = down(y);
    return product;
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

// Every value of some rows.
TEST_F(CudaFp8, GroupedProductIsTheBitModel) {
  const GroupedCase cases[] = {{{0, 40}, 40, 128, 128},
                               {{0, 0, 300, 300, 301, 470}, 512, 200, 400},
                               {{0, 257, 513}, 513, 136, 144},
                               {{0, 0, 0}, 16, 8, 16}};
  for (const auto& [bounds, R, N, K] : cases) {
    const GroupedProduct product = grouped_product(bounds, R, N, K);
    const int64_t E = std::ssize(bounds) - 1;
    const auto offsets = product.offsets.span<int32_t>();
    for (int64_t e = 0; e < E; ++e) {
      const int32_t begin = offsets[static_cast<size_t>(e)], end = offsets[static_cast<size_t>(e) + 1];
      for (int64_t row = begin; row < end; row += row % 64 == 63 ? 1 : 21) {
        for (int64_t col = 0; col < N; ++col) {
          ASSERT_EQ(get(product.y, row * N + col), product.expected(e, row, col))
              << "row " << row << ", column " << col;
        }
      }
    }
    for (int64_t i = int64_t{offsets.back()} * N; i < R * N; ++i) ASSERT_EQ(get(product.y, i), 7.0);
    tensors_.rewind(0);
  }
}

// Tiles of 256 x 128 of experts with random numbers of rows, of which some tiles are short both ways: values of each at
// random, and those at its corners.
TEST_F(CudaFp8, ThousandTilesAreTheBitModel) {
  constexpr int64_t kRows = 256, kCols = 128, kLeastTiles = 1000, kValues = 48, N = 39 * kCols + 72, K = 528;
  const Philox rng(23, "tiles");
  uint64_t draw = 0;
  std::vector<double> bounds{0};
  for (int64_t tiles = 0; tiles * ((N + kCols - 1) / kCols) < kLeastTiles;) {
    const auto rows = static_cast<int64_t>(rng.bits(draw++) % 1000);
    bounds.push_back(bounds.back() + static_cast<double>(rows));
    tiles += (rows + kRows - 1) / kRows;
  }
  const GroupedProduct product = grouped_product(bounds, static_cast<int64_t>(bounds.back()), N, K);
  int64_t num_tiles = 0, num_wrong = 0;
  for (int64_t e = 0; e + 1 < std::ssize(bounds); ++e) {
    const auto begin = static_cast<int64_t>(bounds[static_cast<size_t>(e)]),
               end = static_cast<int64_t>(bounds[static_cast<size_t>(e) + 1]);
    for (int64_t first_row = begin; first_row < end; first_row += kRows) {
      for (int64_t first_col = 0; first_col < N; first_col += kCols, ++num_tiles) {
        const int64_t rows = std::min(kRows, end - first_row), cols = std::min(kCols, N - first_col);
        for (int64_t i = 0; i < kValues; ++i) {
          const bool corner = i < 4;
          const auto at = [&](int64_t size, bool last) {
            if (corner) return last ? size - 1 : 0;
            return static_cast<int64_t>(rng.bits(draw++) % static_cast<uint64_t>(size));
          };
          const int64_t row = first_row + at(rows, i % 2 == 1), col = first_col + at(cols, i / 2 == 1);
          const double actual = get(product.y, row * N + col), expected = product.expected(e, row, col);
          if (actual == expected) continue;
          if (++num_wrong <= 3) {
            ADD_FAILURE() << "expert " << e << ", row " << row << ", column " << col << ": " << actual << ", expected "
                          << expected;
          }
        }
      }
    }
  }
  EXPECT_GE(num_tiles, kLeastTiles);
  EXPECT_EQ(num_wrong, 0) << "of " << num_tiles * kValues;
}

constexpr auto kFp8 = OperandFormat::kFp8;

class CudaFp8Operations : public CudaRoundedTest {
 protected:
  // That the codes are those of the first `rows` of x, with nothing behind them.
  void expect_codes(const RowCodes& codes, Tensor x, int64_t rows) {
    const int64_t R = x.dim(0), C = x.dim(1);
    const RowCodes expected = room_for_codes(R, C);
    gpu().quantize({.format = kFp8,
                    .x = x.reshape({1, R, C}),
                    .num_rows = up(pool_.ints({1}, {static_cast<double>(rows)})),
                    .values = expected.values.reshape({1, R, C}),
                    .scales = expected.scales.reshape({1, R, fp8_blocks(C)})});
    EXPECT_TRUE(same_codes(down(codes.values), down(expected.values)));
    EXPECT_TRUE(same_bits(down(codes.scales), down(expected.scales)));
  }
};

// BF16's rounding alone leaves 53 dB; sums that keep 13 bits some 60.
constexpr double kLeastRatio = 50;

// What the CPU makes of the same operands, but for the 14 bits that tensor cores keep of a sum. Rows are in several
// groups of tiles, and what is added may be the result's own storage.
TEST_F(CudaFp8Operations, DenseProductsAreThoseOfTheCpu) {
  const int64_t T = 4500, K = 208, N = 400;
  const Tensor x = normal({T, K}, DType::kBF16), w = normal({N, K}, DType::kBF16, 0.05),
               addend = normal({T, N}, DType::kBF16), y = pool_.zeros({T, N});
  const Tensor device_w = up(w, DType::kBF16), device_x = up(x, DType::kBF16);
  const OperandRounding fp8 = rounding(device_w);
  for (const bool adds : {false, true}) {
    const Tensor actual = adds ? up(addend, DType::kBF16) : poisoned({T, N});
    run([&](Ops& ops) {
      ops.linear_forward(
          {.x = device_x, .w = device_w, .y = actual, .addend = adds ? actual : Tensor(), .rounding = fp8});
    });
    cpu().linear_forward({.x = x, .w = w, .y = y, .addend = adds ? addend : Tensor(), .rounding = {.format = kFp8}});
    EXPECT_GT(signal_to_noise(down(actual), y), kLeastRatio);
  }
  const Tensor dy = normal({T, N}, DType::kBF16, 1e-3), dx = normal({T, K}, DType::kBF16, 1e-3),
               device_dx = up(dx, DType::kBF16), device_dy = up(dy, DType::kBF16);
  run([&](Ops& ops) {
    ops.linear_backward_input({.dy = device_dy, .w = device_w, .dx = device_dx, .accumulate = true, .rounding = fp8});
  });
  cpu().linear_backward_input({.dy = dy, .w = w, .dx = dx, .accumulate = true, .rounding = {.format = kFp8}});
  EXPECT_GT(signal_to_noise(down(device_dx), dx), kLeastRatio);
}

// By threads of half a warp, a warp and a block a row, and where a block of codes is not whole in one of them.
TEST_F(CudaFp8Operations, ActivationsLeaveTheirCodes) {
  const int64_t N = 70;
  for (const int64_t F : {128, 384, 256, 2176, 112}) {
    for (const auto& [kind, rows] :
         {std::pair{Activation::kSwiGlu, 61}, {Activation::kReluSquared, 61}, {Activation::kSwiGlu, 0}}) {
      const int64_t W = kind == Activation::kSwiGlu ? 2 * F : F;
      const Tensor host_pre = normal({N, W}, DType::kBF16), host_dh = normal({N, F}, DType::kBF16, 1e-4);
      set_specials(host_pre);
      set_specials(host_dh, 6);
      const Tensor pre = up(host_pre, DType::kBF16), num_rows = up(pool_.ints({1}, {static_cast<double>(rows)})),
                   dh = up(host_dh, DType::kBF16), h = poisoned({N, F}), dpre = poisoned({N, W});
      const RowCodes h_codes = room_for_codes(N, F), dpre_codes = room_for_codes(N, W);
      gpu().activation_forward(
          {.kind = kind, .pre = pre, .row_weight = {}, .h = h, .num_rows = num_rows, .h_codes = h_codes});
      expect_codes(h_codes, h, rows);
      // The same codes without h, and h beside the gradients of what it was made of.
      const RowCodes alone = room_for_codes(N, F);
      const Tensor lost_h = poisoned({N, F}), same_h = poisoned({N, F});
      gpu().activation_forward({.kind = kind,
                                .pre = pre,
                                .row_weight = {},
                                .h = lost_h,
                                .num_rows = num_rows,
                                .h_codes = alone,
                                .keeps_h = false});
      EXPECT_TRUE(same_bits(down(alone.values), down(h_codes.values)));
      EXPECT_TRUE(same_bits(down(alone.scales), down(h_codes.scales)));
      gpu().activation_backward({.kind = kind,
                                 .pre = pre,
                                 .row_weight = {},
                                 .dh = dh,
                                 .dpre = dpre,
                                 .drow_weight = {},
                                 .num_rows = num_rows,
                                 .dpre_codes = dpre_codes,
                                 .h = same_h});
      expect_codes(dpre_codes, dpre, rows);
      EXPECT_TRUE(same_bits(down(same_h), down(h)));
    }
    tensors_.rewind(0);
  }
}

// By a warp and a block a row, and where a block of codes is not whole in one of them.
TEST_F(CudaFp8Operations, NormsLeaveTheirCodes) {
  const int64_t N = 70;
  for (const int64_t D : {128, 384, 2048, 2304, 112}) {
    const Tensor host_x = normal({N, D}, DType::kBF16), host_dy = normal({N, D}, DType::kBF16, 1e-4),
                 host_dx = normal({N, D}, DType::kBF16), host_gain = pool_.normal({D});
    set_specials(host_x);
    set_specials(host_dy);
    set_specials(host_dx, 5);  // ties where dy is zero
    for (int64_t j = 0; j < D / 2; ++j) set(host_gain, j, tie(j));
    const Tensor x = up(host_x, DType::kBF16), gain = up(host_gain), rstd = up(pool_.zeros({N})), y = poisoned({N, D}),
                 dgain = up(pool_.zeros({D})), dy = up(host_dy, DType::kBF16), dx = up(host_dx, DType::kBF16);
    const RowCodes y_codes = room_for_codes(N, D), dx_codes = room_for_codes(N, D);
    gpu().rms_norm_forward({.x = x, .gain = gain, .eps = 1e-6, .y = y, .rstd = rstd, .y_codes = y_codes});
    expect_codes(y_codes, y, N);
    run([&](Ops& ops) {
      ops.rms_norm_backward({.x = x,
                             .gain = gain,
                             .rstd = rstd,
                             .dy = dy,
                             .dx = dx,
                             .dgain = dgain,
                             .accumulate_dx = true,
                             .dx_codes = dx_codes});
    });
    expect_codes(dx_codes, dx, N);
    tensors_.rewind(0);
  }
}

// Of the experts' products too, forward and backward, in their epilogue or behind them.
TEST_F(CudaFp8Operations, WhatIsNotFiniteLeavesItsCodes) {
  const int64_t E = 4, R = 300, T = 80, D = 272;
  const ExpertRows of = expert_rows(R, T);
  const Tensor tokens = normal({T, D}, DType::kBF16), dtokens = normal({T, D}, DType::kBF16, 1e-3);
  set_specials(tokens);
  set_specials(dtokens, 3);
  const Tensor offsets = up(of.offsets), index = up(of.index), weight = up(of.row_weight);
  const OperandRows x(up(tokens, DType::kBF16), index), dy(up(dtokens, DType::kBF16), index);
  for (const auto& [kind, F] : hidden_layers({128, 112})) {
    const int64_t W = activation_parts(kind) * F;
    const Tensor w_in = up(normal({E, W, D}, DType::kBF16, 0.05), DType::kBF16),
                 w_out = up(normal({E, D, F}, DType::kBF16, 0.05), DType::kBF16);
    const OperandRounding in = rounding(w_in), out = rounding(w_out);
    const Tensor pre = poisoned({R, W}), h = poisoned({R, F}), dpre = poisoned({R, W}), dweight = up(pool_.zeros({R}));
    const RowCodes h_codes = room_for_codes(R, F), dpre_codes = room_for_codes(R, W);
    run([&](Ops& ops) {
      ops.grouped_activation_forward({.kind = kind,
                                      .x = x,
                                      .w = w_in,
                                      .offsets = offsets,
                                      .row_weight = weight,
                                      .pre = pre,
                                      .h = h,
                                      .rounding = in,
                                      .h_codes = h_codes});
    });
    expect_codes(h_codes, h, of.count);
    run([&](Ops& ops) {
      ops.grouped_activation_backward({.kind = kind,
                                       .dy = dy,
                                       .w = w_out,
                                       .offsets = offsets,
                                       .pre = pre,
                                       .row_weight = weight,
                                       .dpre = dpre,
                                       .drow_weight = dweight,
                                       .rounding = out,
                                       .dpre_codes = dpre_codes});
    });
    expect_codes(dpre_codes, dpre, of.count);
    // Of a token that is none, all that comes of it is none.
    const Tensor made = down(h);
    for (int64_t row = 0; row < of.count; ++row) {
      if (of.index.data<int32_t>()[row] != 1) continue;
      for (int64_t j = 0; j < F; ++j) EXPECT_TRUE(std::isnan(get(made, row * F + j))) << row;
    }
  }
}

// Experts, forward and backward, with hidden widths that the product's epilogue takes and others.
TEST_F(CudaFp8Operations, ExpertsAreThoseOfTheCpuAndOfTheirParts) {
  const int64_t E = 4, R = 1000, T = 300, D = 272;
  const ExpertRows of = expert_rows(R, T);
  const int64_t rows = of.count;
  const Tensor offsets = of.offsets, index = of.index, row_weight = of.row_weight;
  const Tensor tokens = normal({T, D}, DType::kBF16), dtokens = normal({T, D}, DType::kBF16, 1e-3);
  const auto picked = [&](const Tensor& from) {
    const Tensor to = pool_.zeros({R, D});
    for (int64_t i = 0; i < R * D; ++i) {
      set(to, i, get(from, int64_t{index.data<int32_t>()[i / D]} * D + i % D));
    }
    return to;
  };
  const Tensor x = picked(tokens), dy = picked(dtokens);
  for (const auto& [kind, F] : hidden_layers({128, 384, 112})) {
    SCOPED_TRACE(fmt::format("activation {}, {} hidden units", static_cast<int>(kind), F));
    const int64_t W = activation_parts(kind) * F;
    const Tensor device_offsets = up(offsets);
    const Tensor w_in = normal({E, W, D}, DType::kBF16, 0.05), w_out = normal({E, D, F}, DType::kBF16, 0.05);
    const Tensor device_in = up(w_in, DType::kBF16), device_out = up(w_out, DType::kBF16);
    const OperandRounding in = rounding(device_in), out = rounding(device_out);
    const OperandRows device_tokens(up(tokens, DType::kBF16), up(index), up(row_of(pool_, index, rows, T)));
    const Tensor device_x = up(x, DType::kBF16), weight = up(row_weight);

    const Tensor pre = poisoned({R, W}), h = poisoned({R, F});
    const RowCodes h_codes = room_for_codes(R, F);
    run([&](Ops& ops) {
      ops.grouped_activation_forward({.kind = kind,
                                      .x = device_tokens,
                                      .w = device_in,
                                      .offsets = device_offsets,
                                      .row_weight = weight,
                                      .pre = pre,
                                      .h = h,
                                      .rounding = in,
                                      .h_codes = h_codes});
    });
    const Tensor plain_pre = poisoned({R, W}), plain_h = poisoned({R, F});
    run([&](Ops& ops) {
      ops.grouped_linear_forward(
          {.x = device_x, .w = device_in, .offsets = device_offsets, .y = plain_pre, .rounding = in});
    });
    gpu().activation_forward({.kind = kind,
                              .pre = plain_pre,
                              .row_weight = weight,
                              .h = plain_h,
                              .num_rows = device_offsets.rows(E, E + 1)});
    EXPECT_TRUE(same_bits(down(pre), down(plain_pre)));
    EXPECT_TRUE(same_bits(down(h), down(plain_h)));
    expect_codes(h_codes, h, rows);
    // Tokens' codes are picked as tokens are.
    const Tensor pre_from_codes = poisoned({R, W}), h_from_codes = poisoned({R, F});
    const auto with_source_codes = [&](OperandRounding rounding, const Tensor& source) {
      rounding.rows = room_for_codes(T, D);
      gpu().quantize({.format = kFp8,
                      .x = source.reshape({1, T, D}),
                      .values = rounding.rows.values.reshape({1, T, D}),
                      .scales = rounding.rows.scales.reshape({1, T, fp8_blocks(D)})});
      return rounding;
    };
    const OperandRounding in_with_codes = with_source_codes(in, device_tokens.source);
    run([&](Ops& ops) {
      ops.grouped_activation_forward({.kind = kind,
                                      .x = device_tokens,
                                      .w = device_in,
                                      .offsets = device_offsets,
                                      .row_weight = weight,
                                      .pre = pre_from_codes,
                                      .h = h_from_codes,
                                      .rounding = in_with_codes});
    });
    EXPECT_TRUE(same_bits(down(pre), down(pre_from_codes)));
    EXPECT_TRUE(same_bits(down(h), down(h_from_codes)));
    const Tensor expected_pre = pool_.zeros({R, W}), expected_h = pool_.zeros({R, F});
    cpu().grouped_activation_forward({.kind = kind,
                                      .x = x,
                                      .w = w_in,
                                      .offsets = offsets,
                                      .row_weight = row_weight,
                                      .pre = expected_pre,
                                      .h = expected_h,
                                      .rounding = {.format = kFp8}});
    EXPECT_GT(signal_to_noise(down(pre).rows(0, rows), expected_pre.rows(0, rows)), kLeastRatio);

    // Codes that come along are as good as those that the product makes.
    const Tensor y = poisoned({R, D}), y_from_codes = poisoned({R, D});
    OperandRounding with_codes = out;
    with_codes.rows = h_codes;
    run([&](Ops& ops) {
      ops.grouped_linear_forward({.x = h, .w = device_out, .offsets = device_offsets, .y = y, .rounding = out});
      ops.grouped_linear_forward(
          {.x = h, .w = device_out, .offsets = device_offsets, .y = y_from_codes, .rounding = with_codes});
    });
    EXPECT_TRUE(same_bits(down(y), down(y_from_codes)));

    const Tensor dpre = poisoned({R, W}), dweight = up(pool_.full({R}, 7.0)), dh = poisoned({R, F}),
                 plain_dpre = poisoned({R, W}), plain_dweight = up(pool_.full({R}, 7.0));
    const RowCodes dpre_codes = room_for_codes(R, W);
    const OperandRows device_dy(up(dtokens, DType::kBF16), up(index), device_tokens.row_of);
    const Tensor dy_in_order = up(dy, DType::kBF16);
    run([&](Ops& ops) {
      ops.grouped_activation_backward({.kind = kind,
                                       .dy = device_dy,
                                       .w = device_out,
                                       .offsets = device_offsets,
                                       .pre = pre,
                                       .row_weight = weight,
                                       .dpre = dpre,
                                       .drow_weight = dweight,
                                       .rounding = out,
                                       .dpre_codes = dpre_codes});
      ops.grouped_linear_backward_input(
          {.dy = dy_in_order, .w = device_out, .offsets = device_offsets, .dx = dh, .rounding = out});
    });
    gpu().activation_backward({.kind = kind,
                               .pre = pre,
                               .row_weight = weight,
                               .dh = dh,
                               .dpre = plain_dpre,
                               .drow_weight = plain_dweight,
                               .num_rows = device_offsets.rows(E, E + 1)});
    EXPECT_TRUE(same_bits(down(dpre), down(plain_dpre)));
    EXPECT_TRUE(near(down(dweight).rows(0, rows), down(plain_dweight).rows(0, rows), 1e-4));
    expect_codes(dpre_codes, dpre, rows);
    const Tensor expected_dh = pool_.zeros({R, F});
    cpu().grouped_linear_backward_input(
        {.dy = dy, .w = w_out, .offsets = offsets, .dx = expected_dh, .rounding = {.format = kFp8}});
    EXPECT_GT(signal_to_noise(down(dh).rows(0, rows), expected_dh.rows(0, rows)), kLeastRatio);
    tensors_.rewind(0);
  }
}

}  // namespace
}  // namespace nmoe::test
