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

// Rows of logits of the model's whole vocabulary on the host, and of each, if somebody wants log-probabilities, the sum
// that they are taken from: the device's (LogitSums, ops/contracts/head.h), which its losses have, too. Where one logit
// of a row was asked for, the others are anything.
struct LogitRows {
  std::span<const float> logits;  // [N, vocab]
  std::span<const LogSum> sums;   // [N], or empty
  size_t vocab = 0;

  bool empty() const { return logits.empty(); }
  LogitRows from(size_t row) const {
    return {logits.subspan(row * vocab), sums.empty() ? sums : sums.subspan(row), vocab};
  }
};

// The `count` likeliest ids, or all where there are fewer: the likeliest first, the lower of equals first. `logits` may
// be of fewer ids than the sum is.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, const LogSum& log_sum, int count);

}  // namespace nmoe
