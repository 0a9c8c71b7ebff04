// "arithmetic": expressions modulo a number, as in "Physics of Language Models: Part 4.1" (task Mano).
//
// A document is an expression in prefix notation, "=", and its value: "+ 3 * 2 5 = 13". It has a number of operations
// uniform in 1 ... max_operations, each uniform of + - *; how many of the rest go to the left operand is uniform, and
// so is every number in 0 ... modulus - 1. Only the value has a loss.
//
// Settings: modulus (23), max_operations (5).
#pragma once

#include "data/synthetic/draws.h"
#include "data/synthetic/settings.h"
#include "data/synthetic/source.h"

namespace nmoe {

class ArithmeticSource final : public SyntheticSource {
 public:
  ArithmeticSource(uint64_t seed, SettingReader& settings);

  // "0" ... modulus - 1, "+", "-", "*", "=".
  const std::vector<std::string>& words() const override { return words_; }
  const ResolvedSettings& settings() const override { return settings_; }
  bool has_answers() const override { return true; }
  void document(uint64_t index, std::vector<int32_t>& tokens, std::vector<uint8_t>& loss_mask) const override;
  // Exact: prefix notation is unambiguous, so every document determines the choices by which it was made.
  EntropyFloor floor() const override;

 private:
  // Appends an expression and returns its value.
  int64_t append(int64_t num_operations, Draws& draws, std::vector<int32_t>& tokens) const;

  uint64_t seed_;
  int64_t modulus_, max_operations_;
  std::vector<std::string> words_;
  ResolvedSettings settings_;
};

}  // namespace nmoe
