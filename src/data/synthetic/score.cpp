#include "data/synthetic/score.h"

#include "base/error.h"

namespace nmoe {

void score_answers(std::span<const int32_t> tokens, std::span<const uint8_t> loss_mask,
                   std::span<const int32_t> predicted, AnswerScore& score) {
  NMOE_CHECK(loss_mask.size() == tokens.size() && predicted.size() == tokens.size(),
             "{} tokens, {} in the mask, {} predicted", tokens.size(), loss_mask.size(), predicted.size());
  for (size_t i = 0; i < tokens.size();) {
    if (loss_mask[i] == 0) {
      ++i;
      continue;
    }
    bool correct = true;
    for (; i < tokens.size() && loss_mask[i] != 0; ++i) correct &= predicted[i] == tokens[i];
    ++score.answers;
    score.correct += correct ? 1 : 0;
  }
}

}  // namespace nmoe
