// Logarithms of probabilities from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nmoe {

// Natural logarithm of a probability under the model itself: before penalty, temperature and truncation.
struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0F;
};

// The logarithm of the sum of exp(logits): log p(id) is logits[id] less this.
double log_sum_exp(std::span<const float> logits);

// The `count` likeliest ids, or all where there are fewer: the likeliest first, the lower of equals first.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, double log_sum, int count);

}  // namespace nmoe
