// Logarithms of probabilities from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/log_sum.h"

namespace nmoe {

// Natural logarithm of a probability under the model itself: before penalty, temperature and truncation.
struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0F;
};

// Makes the sums of rows of logits of the model's whole vocabulary. Holds a buffer; not thread-safe.
class LogSums {
 public:
  LogSum of(std::span<const float> logits);

 private:
  std::vector<float> row_;
};

// The `count` likeliest ids, or all where there are fewer: the likeliest first, the lower of equals first. `logits` may
// be of fewer ids than the sum is.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, const LogSum& log_sum, int count);

}  // namespace nmoe
