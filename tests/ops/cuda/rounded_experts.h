// What tests of products with rounded operands share: results that were never written show, and rows of experts.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/cuda/cuda_test.h"
#include "ops/quantize_cases.h"

namespace nmoe::test {

class CudaRoundedTest : public CudaTest {
 protected:
  explicit CudaRoundedTest(int num_sms = 0) : CudaTest(num_sms) {}
  Tensor poisoned(Shape shape) { return up(pool_.full(shape, 7.0), DType::kBF16); }

  // On the host: rows of 4 experts, half of them the first one's and none the second's, that pick among tokens.
  struct ExpertRows {
    int64_t count;
    Tensor offsets, index, row_weight;
  };
  ExpertRows expert_rows(int64_t capacity, int64_t num_tokens) {
    const int64_t count = capacity - 10;
    const auto half = static_cast<double>(capacity / 2);
    std::vector<double> picks;
    for (int64_t i = 0; i < capacity; ++i) picks.push_back(static_cast<double>(i * 7 % num_tokens));
    return {.count = count,
            .offsets = pool_.ints({5}, {0, half, half, half + 17, static_cast<double>(count)}),
            .index = pool_.ints({capacity}, picks),
            .row_weight = pool_.normal({capacity})};
  }

  // Experts of each activation with each of these numbers of hidden units.
  static std::vector<std::pair<Activation, int64_t>> hidden_layers(const std::vector<int64_t>& widths) {
    std::vector<std::pair<Activation, int64_t>> layers;
    for (const Activation kind : {Activation::kSwiGlu, Activation::kReluSquared}) {
      for (const int64_t width : widths) layers.emplace_back(kind, width);
    }
    return layers;
  }

  // What products of a weight on the device get in FP8, its codes made.
  OperandRounding rounding(Tensor w) {
    const Tensor x = w.shape().rank() == 3 ? w : w.reshape({1, w.dim(0), w.dim(1)});
    const int64_t E = x.dim(0), N = x.dim(1), K = x.dim(2);
    const WeightCodes codes{.values = tensors_.allocate(DType::kU8, {E, N, K}),
                            .scales = tensors_.allocate(DType::kU8, {E, fp8_blocks(N), fp8_blocks(K)}),
                            .transposed_values = tensors_.allocate(DType::kU8, {E, K, N}),
                            .transposed_scales = tensors_.allocate(DType::kU8, {E, fp8_blocks(K), fp8_blocks(N)})};
    gpu().quantize({.format = OperandFormat::kFp8,
                    .blocks = BlockShape::kTiles,
                    .x = x,
                    .values = codes.values,
                    .scales = codes.scales,
                    .transposed_values = codes.transposed_values,
                    .transposed_scales = codes.transposed_scales});
    return {.format = OperandFormat::kFp8, .weight = codes};
  }
  // Filled with a byte that shows.
  Tensor bytes(Shape shape) {
    const Tensor x = pool_.zeros(DType::kU8, shape);
    std::ranges::fill(x.span<uint8_t>(), uint8_t{0x55});
    return up(x);
  }
  RowCodes room_for_codes(int64_t rows, int64_t width) {
    return {.values = bytes({rows, width}), .scales = bytes({rows, fp8_blocks(width)})};
  }
  // A NaN has two codes, of which either will do.
  static ::testing::AssertionResult same_codes(const Tensor& actual, const Tensor& expected) {
    const std::vector<uint8_t> a = bytes_of(actual), e = bytes_of(expected);
    for (size_t i = 0; i < e.size(); ++i) {
      const bool both_nan = (a[i] & 0x7F) == 0x7F && (e[i] & 0x7F) == 0x7F;
      if (a[i] == e[i] || both_nan) continue;
      return ::testing::AssertionFailure() << fmt::format("code {} is {:02x}, not {:02x}", i, a[i], e[i]);
    }
    return ::testing::AssertionSuccess();
  }
  static int64_t fp8_blocks(int64_t n) {
    constexpr int64_t kBlock = block_size(OperandFormat::kFp8);
    return (n + kBlock - 1) / kBlock;
  }
};

}  // namespace nmoe::test
