// Known answers of everything that makes operands of products in low precision, for every device, one table: producers
// by formats by what is special. The answers are those of tests/tensor/fixtures/low_precision/experts.txt, which
// scripts/low_precision_vectors.py wrote in exact rational numbers. Its matrices hold BF16 values: rows of experts that
// have 0, 1, 127, 128 and 129 of them, rows that are not finite, and weights; each row is of a kind that has a name.
//
// Operations get inputs with which what they round is the matrix itself: norms of ones with a row as their gain, SwiGLU
// of a gate so large that its sigmoid is 1, products with an identity, which every format holds. Where they leave
// codes, those are held against the answer, else what codes stand for is, as a product with an identity shows it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/answering_device.h"
#include "support/tensors.h"
#include "tensor/convert.h"
#include "tensor/low_precision.h"

namespace nmoe::test {

struct AnsweredBlock {
  uint8_t scale;
  std::vector<uint8_t> codes;  // one each
};
struct Answer {
  std::vector<float> amax;  // of each expert, as a tensor of this form
  // Of rows and tiles in row-major order; along tokens by expert, then by first token, then by column.
  std::vector<AnsweredBlock> blocks;
};
// R rows of E experts.
struct AnsweredMatrix {
  std::string name;
  Tensor x;                                            // [R, C] F32, BF16's values
  Tensor offsets;                                      // [E + 1] i32
  Tensor numbers;                                      // [E] i32: which of all experts one is
  std::vector<std::string> kinds;                      // of the rows
  std::map<std::string, Answer, std::less<>> answers;  // by form

  int64_t num_rows() const { return x.dim(0); }
  int64_t width() const { return x.dim(1); }
  int64_t num_experts() const { return offsets.dim(0) - 1; }
  int64_t begin(int64_t expert) const { return offsets.data<int32_t>()[expert]; }
  int64_t rows_of(int64_t expert) const { return begin(expert + 1) - begin(expert); }
  int64_t expert_of(int64_t row) const {
    int64_t expert = 0;
    while (begin(expert + 1) <= row) ++expert;
    return expert;
  }
};
struct KnownAnswers {
  Tensor key;  // [1] i64
  uint64_t stream = 0;
  std::vector<AnsweredMatrix> matrices;
};

inline OperandFormat format_of(std::string_view form) {
  if (form.starts_with("fp8")) return OperandFormat::kFp8;
  return form.starts_with("mxfp8") ? OperandFormat::kMxFp8 : OperandFormat::kNvFp4;
}

inline KnownAnswers read_known_answers(TensorPool& pool) {
  std::ifstream file(NMOE_SOURCE_DIR "/tests/tensor/fixtures/low_precision/experts.txt");
  const auto number = [](std::string_view digits) {
    return static_cast<uint32_t>(std::stoul(std::string(digits), nullptr, 16));
  };
  KnownAnswers known{.key = pool.zeros(DType::kI64, {1})};
  std::vector<double> experts;
  for (std::string word; file >> word;) {
    if (word == "key") {
      uint64_t key = 0;
      file >> std::hex >> key >> known.stream >> std::dec;
      *known.key.data<int64_t>() = static_cast<int64_t>(key);
    } else if (word == "experts") {
      for (double& one : experts = std::vector<double>(5)) file >> one;
    } else if (word == "matrix") {
      AnsweredMatrix& matrix = known.matrices.emplace_back();
      int64_t R = 0, C = 0;
      size_t E = 0;
      file >> matrix.name >> R >> C >> E;
      std::vector<double> bounds(E + 1);
      for (double& bound : bounds) file >> bound;
      matrix.x = pool.zeros(DType::kF32, {R, C});
      matrix.offsets = pool.ints({std::ssize(bounds)}, bounds);
      matrix.numbers =
          pool.ints({std::ssize(bounds) - 1}, {experts.begin(), experts.begin() + static_cast<int64_t>(E)});
      for (int64_t row = 0; row < R; ++row) {
        std::string digits;
        file >> matrix.kinds.emplace_back() >> digits;
        for (int64_t col = 0; col < C; ++col) {
          const uint32_t bits = number(std::string_view(digits).substr(static_cast<size_t>(col) * 4, 4));
          matrix.x.data<float>()[row * C + col] = std::bit_cast<float>(bits << 16);
        }
      }
    } else {
      NMOE_CHECK(word == "answer", "'{}' among the known answers", word);
      std::string form, digits;
      size_t count = 0;
      file >> form >> count;
      Answer& answer = known.matrices.back().answers[form];
      for (int64_t e = 0; e < known.matrices.back().num_experts(); ++e) {
        file >> digits;
        answer.amax.push_back(std::bit_cast<float>(number(digits)));
      }
      const size_t width = format_of(form) == OperandFormat::kNvFp4 ? 1 : 2;
      for (size_t i = 0; i < count; ++i) {
        file >> digits;
        AnsweredBlock& block = answer.blocks.emplace_back(static_cast<uint8_t>(number(digits)));
        file >> digits;
        for (size_t at = 0; at < digits.size(); at += width) {
          block.codes.push_back(static_cast<uint8_t>(number(std::string_view(digits).substr(at, width))));
        }
      }
    }
  }
  return known;
}

// One matrix through one producer on one device. Every member function is a producer of `form`.
class AnswerCheck {
 public:
  AnswerCheck(AnsweringDevice& device, TensorPool& pool, const KnownAnswers& known, const AnsweredMatrix& matrix,
              std::string_view form)
      : device_(device),
        ops_(device.answering_ops()),
        pool_(pool),
        known_(known),
        m_(matrix),
        form_(form),
        format_(format_of(form)),
        answer_(matrix.answers.find(form)->second) {}

  void quantized_rows();
  void quantized_tiles();
  void norms();
  void norms_backward();
  void activations();
  void activations_backward();
  void columns_of_activations();
  void rows_of_products();
  void dispatched_rows();
  void gradients_of_outputs();
  void combined_gradients();
  void inputs_by_tokens() { by_tokens(/*of_gradients=*/false, /*picks=*/false); }
  void dispatched_by_tokens() { by_tokens(/*of_gradients=*/false, /*picks=*/true); }
  void gradients_by_tokens() { by_tokens(/*of_gradients=*/true, /*picks=*/false); }
  void combined_by_tokens() { by_tokens(/*of_gradients=*/true, /*picks=*/true); }
  void weights();
  void weights_backward();

 private:
  static constexpr float kGate = 32.0F;    // sigmoid(kGate) is 1
  static constexpr int64_t kTokens = 144;  // as many as an expert has at most, and more

  bool is_nvfp4() const { return format_ == OperandFormat::kNvFp4; }
  bool is_random() const { return form_.ends_with("random"); }
  int64_t block() const { return block_size(format_); }
  static int64_t blocks(int64_t size, int64_t n) { return (size + n - 1) / n; }
  OperandRounding rounding() const {
    OperandRounding rounding{.format = format_};
    if (!is_random()) return rounding;
    rounding.random = {.key = device_.there(known_.key, DType::kI64),
                       .stream = known_.stream,
                       .experts = device_.there(m_.numbers, DType::kI32)};
    return rounding;
  }
  OperandRounding rounding_with(Tensor w) const {
    OperandRounding of_operand = rounding();
    of_operand.weight = device_.of_weight(format_, w).weight;
    return of_operand;
  }

  Tensor act(Tensor host) { return device_.there(host, device_.act()); }
  Tensor stat(Tensor host) { return device_.there(host, DType::kF32); }
  Tensor ints(Tensor host) { return device_.there(host, DType::kI32); }
  // What shows where nothing is written.
  Tensor room(Shape shape) { return act(pool_.full(shape, 7.0)); }
  Tensor stat_room(Shape shape) { return stat(pool_.full(shape, 7.0)); }
  Tensor bytes(Shape shape) {
    const Tensor x = pool_.zeros(DType::kU8, shape);
    std::ranges::fill(x.span<uint8_t>(), uint8_t{0x55});
    return device_.there(x, DType::kU8);
  }
  RowCodes room_for_rows(int64_t width) {
    return {.values = bytes({m_.num_rows(), width}), .scales = bytes({m_.num_rows(), blocks(width, 128)})};
  }
  // [count, rows, cols]: 1 where row % cols is the column.
  Tensor identities(int64_t count, int64_t rows, int64_t cols) {
    const Tensor x = pool_.zeros({count, rows, cols});
    for (int64_t i = 0; i < count * rows; ++i) set(x, i * cols + i % rows % cols, 1.0);
    return x;
  }
  // [R, kTokens]: 1 where the column is the row's number within its expert.
  Tensor tokens() {
    const Tensor x = pool_.zeros({m_.num_rows(), kTokens});
    for (int64_t row = 0; row < m_.num_rows(); ++row) set(x, row * kTokens + row - m_.begin(m_.expert_of(row)), 1.0);
    return x;
  }
  // Where a row lies among those that experts' rows are picked from.
  int64_t source_of(int64_t row) const { return (row * 13 + 3) % m_.num_rows(); }
  Tensor scattered(Tensor rows) {
    const Tensor source = pool_.zeros(rows.dtype(), rows.shape());
    const auto row_bytes = static_cast<size_t>(rows.num_bytes() / rows.dim(0));
    for (int64_t row = 0; row < m_.num_rows(); ++row) {
      std::memcpy(source.rows(source_of(row), source_of(row) + 1).raw(), rows.rows(row, row + 1).raw(), row_bytes);
    }
    return source;
  }
  Tensor index() {
    std::vector<double> picks;
    for (int64_t row = 0; row < m_.num_rows(); ++row) picks.push_back(static_cast<double>(source_of(row)));
    return ints(pool_.ints({m_.num_rows()}, picks));
  }
  OperandRows picked(Tensor source) {
    std::vector<double> row_of(static_cast<size_t>(m_.num_rows()));
    for (int64_t row = 0; row < m_.num_rows(); ++row)
      row_of[static_cast<size_t>(source_of(row))] = static_cast<double>(row);
    return {source, index(), ints(pool_.ints({m_.num_rows(), 1}, row_of))};
  }
  // The answer as codes of FP8's rows.
  RowCodes answered_rows() {
    const Tensor values = pool_.zeros(DType::kU8, m_.x.shape()), scales = pool_.zeros(DType::kU8, {m_.num_rows(), 1});
    for (int64_t row = 0; row < m_.num_rows(); ++row) {
      const AnsweredBlock& codes = answer_.blocks[static_cast<size_t>(row)];
      std::ranges::copy(codes.codes, values.data<uint8_t>() + row * m_.width());
      scales.data<uint8_t>()[row] = codes.scale;
    }
    return {.values = values, .scales = scales};
  }

  // What a code of a block stands for, without the tensor's scale. CUDA's emulation of MXFP8 has it in BF16, which
  // holds it unless it is subnormal.
  double widened(const AnsweredBlock& block, size_t i) const {
    const float value = is_nvfp4() ? e2m1_to_float(block.codes[i]) * e4m3_to_float(block.scale)
                                   : e4m3_to_float(block.codes[i]) * e8m0_to_float(block.scale);
    const bool emulated = format_ == OperandFormat::kMxFp8 && device_.act() == DType::kBF16;
    return static_cast<double>(emulated ? bf16_to_float(float_to_bf16(value)) : value);
  }
  // What of a product with an identity, whose largest value is `amax`, is to be multiplied by.
  double factor(int64_t expert, float amax = 1.0F) const {
    if (!is_nvfp4()) return 1.0;
    return 2688.0 * static_cast<double>(nvfp4_product_scale(answer_.amax[static_cast<size_t>(expert)], amax));
  }
  // What x [R, C] is rounded to, in blocks of rows, with a NaN where there is one among what is summed over.
  std::vector<double> widened_rows() const {
    const int64_t C = m_.width(), across = blocks(C, block());
    std::vector<double> x;
    for (int64_t row = 0; row < m_.num_rows(); ++row) {
      double sum = 0.0;
      for (int64_t col = 0; col < C; ++col) {
        x.push_back(widened(answer_.blocks[static_cast<size_t>(row * across + col / block())],
                            static_cast<size_t>(col % block())) *
                    factor(m_.expert_of(row)));
        sum += 0.0 * x.back();
      }
      for (int64_t col = 0; std::isnan(sum) && col < C; ++col) x[static_cast<size_t>(row * C + col)] = sum;
    }
    return x;
  }

  // --- comparisons

  std::string where(std::string_view what, int64_t row, int64_t col) const {
    return fmt::format("{} of {} of '{}', row {} ({}), column {}", what, form_, m_.name, row,
                       m_.kinds[static_cast<size_t>(row)], col);
  }
  // CUDA may give a NaN of E4M3 a sign.
  bool same_code(uint8_t actual, uint8_t expected) const {
    const bool both_nan = format_ != OperandFormat::kNvFp4 && (actual & 0x7F) == 0x7F && expected == 0x7F;
    return actual == expected || (both_nan && device_.act() == DType::kBF16);
  }
  // `repeats`: how many times a row's values stand in one after the other.
  void expect_rows(const RowCodes& codes, int64_t repeats = 1) {
    const Tensor values = device_.here(codes.values), scales = device_.here(codes.scales);
    const int64_t C = m_.width();
    for (int64_t row = 0; row < m_.num_rows(); ++row) {
      const AnsweredBlock& expected = answer_.blocks[static_cast<size_t>(row)];
      ASSERT_EQ(int{scales.data<uint8_t>()[row]}, int{expected.scale}) << where("scale", row, 0);
      for (int64_t col = 0; col < C * repeats; ++col) {
        const uint8_t code = values.data<uint8_t>()[row * C * repeats + col],
                      wanted = expected.codes[static_cast<size_t>(col % C)];
        ASSERT_TRUE(same_code(code, wanted))
            << fmt::format("{:02x}, not {:02x}: ", code, wanted) << where("code", row, col);
      }
    }
  }
  // To the bit; in NVFP4, where products are multiplied by tensors' scales, to what that may round. Neighbours among a
  // format's values are a sixteenth apart.
  void expect_value(double actual, double expected, int64_t row, int64_t col, bool in_act) const {
    if (in_act && device_.act() == DType::kBF16) {
      expected = static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(expected))));
    }
    if (std::isnan(actual) && std::isnan(expected)) return;
    const double tolerance = !is_nvfp4() ? 0.0 : in_act && device_.act() == DType::kBF16 ? 0x1p-7 : 0x1p-20;
    ASSERT_LE(std::abs(actual - expected), tolerance * std::abs(expected))
        << fmt::format("{:.10g}, not {:.10g}: ", actual, expected) << where("value", row, col);
  }
  void expect_product(Tensor result, int64_t repeats = 1) {
    const Tensor actual = device_.here(result);
    const std::vector<double> expected = widened_rows();
    const int64_t C = m_.width();
    for (int64_t i = 0; i < actual.num_elements() && !::testing::Test::HasFatalFailure(); ++i) {
      const int64_t row = i / (C * repeats), col = i % (C * repeats);
      expect_value(get(actual, i), expected[static_cast<size_t>(row * C + col % C)], row, col, /*in_act=*/true);
    }
  }

  void by_tokens(bool of_gradients, bool picks);
  void expect_weights(Tensor result, bool backward);
  void expect_tokens(int64_t expert, int64_t col, const std::vector<AnsweredBlock>& column,
                     const std::vector<double>& actual);

  AnsweringDevice& device_;
  Ops& ops_;
  TensorPool& pool_;
  const KnownAnswers& known_;
  const AnsweredMatrix& m_;
  const std::string form_;
  const OperandFormat format_;
  const Answer& answer_;
};

struct Producer {
  const char *name, *form;
  void (AnswerCheck::*check)();
};

// Norms, activations and what picks rows leave codes in FP8; the other formats are rounded to where products read their
// operands.
inline constexpr Producer kProducers[] = {
    {"Quantize", "fp8_rows", &AnswerCheck::quantized_rows},
    {"Quantize", "mxfp8_rows", &AnswerCheck::quantized_rows},
    {"Quantize", "nvfp4_rows", &AnswerCheck::quantized_rows},
    {"Quantize", "nvfp4_rows_random", &AnswerCheck::quantized_rows},
    {"QuantizeWeights", "fp8_tiles", &AnswerCheck::quantized_tiles},
    {"QuantizeWeights", "nvfp4_tiles", &AnswerCheck::quantized_tiles},
    {"Norms", "fp8_rows", &AnswerCheck::norms},
    {"NormsBackward", "fp8_rows", &AnswerCheck::norms_backward},
    {"Activations", "fp8_rows", &AnswerCheck::activations},
    {"Activations", "fp8_columns", &AnswerCheck::columns_of_activations},
    {"ActivationsBackward", "fp8_rows", &AnswerCheck::activations_backward},
    {"Inputs", "fp8_rows", &AnswerCheck::rows_of_products},
    {"Inputs", "mxfp8_rows", &AnswerCheck::rows_of_products},
    {"Inputs", "nvfp4_rows", &AnswerCheck::rows_of_products},
    {"Dispatch", "fp8_rows", &AnswerCheck::dispatched_rows},
    {"Dispatch", "mxfp8_rows", &AnswerCheck::dispatched_rows},
    {"Dispatch", "nvfp4_rows", &AnswerCheck::dispatched_rows},
    {"OutputGradients", "fp8_rows", &AnswerCheck::gradients_of_outputs},
    {"OutputGradients", "mxfp8_rows", &AnswerCheck::gradients_of_outputs},
    {"OutputGradients", "nvfp4_rows", &AnswerCheck::gradients_of_outputs},
    {"OutputGradients", "nvfp4_rows_random", &AnswerCheck::gradients_of_outputs},
    {"CombineBackward", "fp8_rows", &AnswerCheck::combined_gradients},
    {"CombineBackward", "mxfp8_rows", &AnswerCheck::combined_gradients},
    {"CombineBackward", "nvfp4_rows", &AnswerCheck::combined_gradients},
    {"CombineBackward", "nvfp4_rows_random", &AnswerCheck::combined_gradients},
    {"InputsByTokens", "fp8_columns", &AnswerCheck::inputs_by_tokens},
    {"InputsByTokens", "mxfp8_columns", &AnswerCheck::inputs_by_tokens},
    {"InputsByTokens", "nvfp4_columns", &AnswerCheck::inputs_by_tokens},
    {"DispatchByTokens", "fp8_columns", &AnswerCheck::dispatched_by_tokens},
    {"DispatchByTokens", "mxfp8_columns", &AnswerCheck::dispatched_by_tokens},
    {"DispatchByTokens", "nvfp4_columns", &AnswerCheck::dispatched_by_tokens},
    {"OutputGradientsByTokens", "fp8_columns", &AnswerCheck::gradients_by_tokens},
    {"OutputGradientsByTokens", "mxfp8_columns", &AnswerCheck::gradients_by_tokens},
    {"OutputGradientsByTokens", "nvfp4_columns_random", &AnswerCheck::gradients_by_tokens},
    {"CombineBackwardByTokens", "fp8_columns", &AnswerCheck::combined_by_tokens},
    {"CombineBackwardByTokens", "mxfp8_columns", &AnswerCheck::combined_by_tokens},
    {"CombineBackwardByTokens", "nvfp4_columns_random", &AnswerCheck::combined_by_tokens},
    {"Weights", "fp8_tiles", &AnswerCheck::weights},
    {"Weights", "mxfp8_rows_of_weights", &AnswerCheck::weights},
    {"Weights", "nvfp4_tiles", &AnswerCheck::weights},
    {"WeightsBackward", "fp8_tiles", &AnswerCheck::weights_backward},
    {"WeightsBackward", "mxfp8_columns_of_weights", &AnswerCheck::weights_backward},
    {"WeightsBackward", "nvfp4_tiles", &AnswerCheck::weights_backward},
};

inline std::string producer_name(const ::testing::TestParamInfo<Producer>& info) {
  return fmt::format("{}_{}", info.param.name, info.param.form);
}

// Holds a producer to the answers of every matrix that has one of its form.
inline void expect_known_answers(AnsweringDevice& device, TensorPool& pool, const Producer& producer) {
  const KnownAnswers known = read_known_answers(pool);
  int num_checked = 0;
  for (const AnsweredMatrix& matrix : known.matrices) {
    if (!matrix.answers.contains(producer.form)) continue;
    AnswerCheck check(device, pool, known, matrix, producer.form);
    (check.*producer.check)();
    ++num_checked;
  }
  EXPECT_GT(num_checked, 0);
}

}  // namespace nmoe::test
