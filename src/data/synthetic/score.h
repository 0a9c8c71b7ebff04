// How many answers of synthetic documents a model gets right.
#pragma once

#include <cstdint>
#include <span>

namespace nmoe {

// An answer is a run of tokens with loss_mask 1.
struct AnswerScore {
  int64_t answers = 0;
  int64_t correct = 0;  // every token of them

  double share() const { return answers == 0 ? 0.0 : static_cast<double>(correct) / static_cast<double>(answers); }
};

// Adds a document's answers to `score`: predicted[i] is what was predicted in place of tokens[i] from the true tokens
// before it. All three have one element a token.
void score_answers(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask,
                   std::span<const int32_t> predicted, AnswerScore& score);

}  // namespace nmoe
