#include "ops/contracts/bias.h"

#include "support/gradient_check.h"

namespace nmoe::test {
namespace {

TEST(Bias, ForwardAddsToEveryRow) {
  constexpr int64_t kRows = 5, kWidth = 7;
  TensorPool pool(DType::kF64);
  const ReadyDevice ops = cpu_device(DType::kF64, 2);
  const Tensor x = pool.normal({kRows, kWidth}), bias = pool.normal({kWidth}), y = pool.zeros({kRows, kWidth});
  std::vector<double> alone, added;
  for (int64_t i = 0; i < kRows * kWidth; ++i) {
    alone.push_back(get(bias, i % kWidth));
    added.push_back(get(x, i) + get(bias, i % kWidth));
  }
  ops->bias_forward({.x = {}, .bias = bias, .y = y});
  EXPECT_TRUE(near(y, alone, 0.0));
  ops->bias_forward({.x = x, .bias = bias, .y = y});
  EXPECT_TRUE(near(y, added, 0.0));
  ops->bias_forward({.x = x, .bias = bias, .y = x});
  EXPECT_TRUE(near(x, added, 0.0)) << "in place";
}

// Fewer rows than a chunk, and chunks of which the last is not whole; columns of a wider matrix.
TEST(Bias, BackwardSumsRowsInTheContractsOrder) {
  constexpr int64_t kWidth = 5, kFirst = 2, kAll = 9;
  for (const int64_t rows : {int64_t{0}, int64_t{1}, kBiasChunkRows, 3 * kBiasChunkRows + 17}) {
    TensorPool pool(DType::kF32);
    const ReadyDevice ops = cpu_device(DType::kF32, 2);
    const Tensor all = pool.normal({rows, kAll}), dbias = pool.normal({kWidth});
    std::vector<double> expected;
    for (int64_t column = 0; column < kWidth; ++column) {
      float total = 0.0F;
      for (int64_t begin = 0; begin < rows; begin += kBiasChunkRows) {
        float chunk = 0.0F;
        for (int64_t row = begin; row < std::min(begin + kBiasChunkRows, rows); ++row) {
          chunk += static_cast<float>(get(all, row * kAll + kFirst + column));
        }
        total = begin == 0 ? chunk : total + chunk;
      }
      expected.push_back(static_cast<double>(static_cast<float>(get(dbias, column)) + total));
    }
    ops->bias_backward({.dy = all.columns(kFirst, kFirst + kWidth), .dbias = dbias});
    EXPECT_TRUE(near(dbias, expected, 0.0)) << rows << " rows";
  }
}

TEST(Bias, BackwardMatchesFiniteDifferences) {
  TensorPool pool(DType::kF64);
  const ReadyDevice ops = cpu_device(DType::kF64, 2);
  const Tensor x = pool.normal({4, 3}), bias = pool.normal({3}), y = pool.zeros({4, 3}), dy = pool.normal({4, 3});
  const Tensor dbias = pool.zeros({3});
  ops->bias_backward({.dy = dy, .dbias = dbias});
  const auto loss = [&] {
    ops->bias_forward({.x = x, .bias = bias, .y = y});
    return dot(y, dy);
  };
  EXPECT_TRUE(gradient_matches(loss, bias, dbias));
}

}  // namespace
}  // namespace nmoe::test
