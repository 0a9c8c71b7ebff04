// Known answers of the quantisers, for every device: tests/tensor/fixtures/low_precision/blocks.txt, which
// scripts/low_precision_vectors.py wrote.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "support/tensors.h"

namespace nmoe::test {

struct QuantizeCase {
  std::string name;  // of format and matrix
  Quantize args;     // x [1, N, C] F32; amax and random's tensors on the host; values and scales of the right shapes
  Tensor amax;       // [1] F32: the largest magnitude of x
  std::vector<uint8_t> values, scales;
};

inline std::vector<uint32_t> read_hex(std::istream& file) {
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  std::vector<uint32_t> numbers;
  for (uint32_t number = 0; words >> std::hex >> number;) numbers.push_back(number);
  return numbers;
}

inline std::vector<uint8_t> to_bytes(const std::vector<uint32_t>& numbers) { return {numbers.begin(), numbers.end()}; }

inline std::vector<QuantizeCase> read_quantize_cases(TensorPool& pool) {
  std::ifstream file(NMOE_SOURCE_DIR "/tests/tensor/fixtures/low_precision/blocks.txt");
  std::vector<QuantizeCase> cases;
  const Tensor key = pool.zeros(DType::kI64, {1});
  uint64_t stream = 0;
  Tensor x, amax;
  for (std::string word; file >> word;) {
    if (word == "key") {
      uint64_t number = 0;
      file >> std::hex >> number >> stream;
      *key.data<int64_t>() = static_cast<int64_t>(number);
      continue;
    }
    std::string matrix;
    file >> matrix;
    if (word == "matrix") {
      int64_t rows = 0, cols = 0;
      uint32_t amax_bits = 0;
      file >> std::dec >> rows >> cols >> std::hex >> amax_bits >> std::ws;
      x = pool.zeros(DType::kF32, {1, rows, cols});
      amax = pool.zeros(DType::kF32, {1});
      *amax.data<float>() = std::bit_cast<float>(amax_bits);
      if (rows * cols == 0) continue;  // its line is empty, and skipped
      const std::vector<uint32_t> bits = read_hex(file);
      NMOE_CHECK(static_cast<int64_t>(bits.size()) == rows * cols, "{} values of {}", bits.size(), matrix);
      for (size_t i = 0; i < bits.size(); ++i) x.data<float>()[i] = std::bit_cast<float>(bits[i]);
      continue;
    }
    file.ignore(1);  // the end of the line
    QuantizeCase& one = cases.emplace_back();
    one.name = word + " of " + matrix;
    one.values = to_bytes(read_hex(file));
    one.scales = to_bytes(read_hex(file));
    one.amax = amax;
    const std::string format = word.substr(0, word.find('_')), blocks = word.substr(word.find('_') + 1);
    one.args.format = format == "fp8"     ? OperandFormat::kFp8
                      : format == "mxfp8" ? OperandFormat::kMxFp8
                                          : OperandFormat::kNvFp4;
    one.args.blocks = blocks == "tiles" ? BlockShape::kTiles : BlockShape::kRows;
    one.args.x = x;
    const bool is_nvfp4 = one.args.format == OperandFormat::kNvFp4;
    if (is_nvfp4) one.args.amax = amax;
    if (blocks == "random") one.args.random = {.key = key, .stream = stream};
    const int64_t N = x.dim(1), C = x.dim(2), n = block_size(one.args.format);
    const int64_t height = blocks == "tiles" ? n : 1;
    one.args.values = pool.zeros(DType::kU8, {1, N, is_nvfp4 ? (C + 1) / 2 : C});
    one.args.scales = pool.zeros(DType::kU8, {1, (N + height - 1) / height, (C + n - 1) / n});
  }
  return cases;
}

// The odd numbers below 32, of which those from 17 on lie between two of E4M3, and 256, so that a block's scale is 1.
inline double tie(int64_t i) {
  return i % 16 == 0 ? 256.0 : static_cast<double>(i % 16 * 2 + 1) * (i % 3 == 0 ? -1 : 1);
}

// Overwrites the first 8 rows of x [N, C] with what is not ordinary: row r with kind (r + shift) % 8 of zeros of both
// signs, ordinary values with a NaN, with an infinity of either sign, subnormals, ties, large values, halves.
inline void set_specials(const Tensor& x, int64_t shift = 0) {
  const int64_t C = x.dim(1);
  for (int64_t row = 0; row < 8; ++row) {
    const int64_t kind = (row + shift) % 8;
    for (int64_t j = 0; j < C; ++j) {
      const int64_t i = row * C + j;
      if (kind == 0) set(x, i, j % 2 == 0 ? 0.0 : -0.0);
      if (kind == 4) set(x, i, std::ldexp(get(x, i), -130));
      if (kind == 5) set(x, i, tie(j));
      if (kind == 6) set(x, i, std::ldexp(get(x, i), 100));
      if (kind == 7) set(x, i, 0.5);
    }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (kind == 1) set(x, row * C + 3, std::numeric_limits<double>::quiet_NaN());
    if (kind == 2) set(x, row * C + C - 1, kInfinity);
    if (kind == 3) set(x, row * C, -kInfinity);
  }
}

inline std::vector<uint8_t> bytes_of(const Tensor& x) {
  const auto bytes = x.span<uint8_t>();
  return {bytes.begin(), bytes.end()};
}

}  // namespace nmoe::test
