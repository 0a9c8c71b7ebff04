// The sum that log-probabilities are taken from, of a row of logits that nobody writes to.
#pragma once

#include <iterator>
#include <span>
#include <vector>

#include "ops/log_sum.h"

namespace nmoe::test {

inline LogSum log_sum(std::span<const float> logits) {
  std::vector<float> row(logits.begin(), logits.end());
  return log_sum_of(row.data(), std::ssize(row));
}

}  // namespace nmoe::test
