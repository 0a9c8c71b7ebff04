#include "data/synthetic/arithmetic.h"

#include <cmath>

#include "base/error.h"

namespace nmoe {
namespace {

// In the order of their words.
enum Operation : int64_t { kAdd, kSubtract, kMultiply, kNumOperations };

}  // namespace

ArithmeticSource::ArithmeticSource(uint64_t seed, SettingReader& settings)
    : seed_(seed),
      modulus_(settings.integer("modulus", 23, 2, 1 << 15)),
      max_operations_(settings.integer("max_operations", 5, 1, 1000)) {
  settings_ = settings.resolved();
  for (int64_t number = 0; number < modulus_; ++number) words_.push_back(std::to_string(number));
  words_.insert(words_.end(), {"+", "-", "*", "="});
}

int64_t ArithmeticSource::append(int64_t num_operations, Draws& draws, std::vector<int32_t>& tokens) const {
  if (num_operations == 0) {
    tokens.push_back(static_cast<int32_t>(draws.below(modulus_)));
    return tokens.back();
  }
  const int64_t operation = draws.below(kNumOperations);
  tokens.push_back(static_cast<int32_t>(modulus_ + operation));
  const int64_t in_left = draws.below(num_operations);
  const int64_t left = append(in_left, draws, tokens);
  const int64_t right = append(num_operations - 1 - in_left, draws, tokens);
  if (operation == kAdd) return (left + right) % modulus_;
  if (operation == kSubtract) return (left - right + modulus_) % modulus_;
  return left * right % modulus_;
}

void ArithmeticSource::document(uint64_t index, std::vector<int32_t>& tokens, std::vector<uint8_t>& loss_mask) const {
  Draws draws(seed_, "synthetic.documents", index);
  tokens.clear();
  const int64_t value = append(1 + draws.below(max_operations_), draws, tokens);
  tokens.push_back(static_cast<int32_t>(modulus_ + kNumOperations));
  tokens.push_back(static_cast<int32_t>(value));
  loss_mask.assign(tokens.size(), 0);
  loss_mask.back() = 1;
}

// h[m], of an expression of m operations: its first one, how the others are shared out, and the two operands.
EntropyFloor ArithmeticSource::floor() const {
  std::vector<double> h = {std::log(static_cast<double>(modulus_))};
  double nats = std::log(static_cast<double>(max_operations_)), tokens = 0.0;
  const double share = 1.0 / static_cast<double>(max_operations_);
  for (int64_t m = 1; m <= max_operations_; ++m) {
    double operands = 0.0;
    for (int64_t in_left = 0; in_left < m; ++in_left) {
      operands += h[static_cast<size_t>(in_left)] + h[static_cast<size_t>(m - 1 - in_left)];
    }
    const auto count = static_cast<double>(m);
    h.push_back(std::log(static_cast<double>(kNumOperations)) + std::log(count) + operands / count);
    nats += share * h.back();
    tokens += share * (2 * count + 1);
  }
  constexpr double kValueAndMarks = 3;  // "=", the value, the end
  return {.document_nats = nats, .tokens_per_document = tokens + kValueAndMarks, .targets_per_document = 1};
}

}  // namespace nmoe
