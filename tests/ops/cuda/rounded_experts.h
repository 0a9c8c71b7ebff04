// What tests of products with rounded operands share: results that were never written show, and rows of experts.
#pragma once

#include <vector>

#include "ops/cuda/cuda_test.h"

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
};

}  // namespace nmoe::test
