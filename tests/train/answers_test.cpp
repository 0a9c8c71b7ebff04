#include "train/answers.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "data/stream/loader.h"

namespace nmoe {
namespace {

constexpr int32_t kEnd = 9;

struct Score {
  int64_t answers = 0;
  int64_t correct = 0;
  bool operator==(const Score&) const = default;
};

// `tokens` and `mask` cut into windows of `seq_len`; `predicted[i]` in place of tokens[i], the first of which nobody
// predicts.
Score score(const std::vector<int32_t>& tokens, const std::vector<int>& mask, const std::vector<int32_t>& predicted,
            size_t seq_len) {
  AnswerCounter counter(kEnd);
  for (size_t first = 0; first + seq_len < tokens.size(); first += seq_len) {
    std::vector<int32_t> inputs, targets, predictions;
    for (size_t i = first; i < first + seq_len; ++i) {
      inputs.push_back(tokens[i]);
      targets.push_back(mask[i + 1] != 0 ? tokens[i + 1] : kNoTarget);
      predictions.push_back(predicted[i + 1]);
    }
    counter.add_window(inputs, targets, predictions);
  }
  return {counter.answers(), counter.correct()};
}

// Questions 1, answers of one, two and one tokens; the last one meets the end of its document.
const std::vector<int32_t> kTokens = {1, 2, 1, 3, 4, 1, 5, kEnd, 1, 6, kEnd, 1, 1};
const std::vector<int> kMask = {0, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0};

TEST(AnswerCounter, AnAnswerIsRightAsAWholeOrNot) {
  // What is predicted for questions and ends does not matter.
  EXPECT_EQ(score(kTokens, kMask, {0, 2, 0, 3, 4, 0, 5, 0, 0, 6, 0, 0, 0}, 12), (Score{4, 4}));
  EXPECT_EQ(score(kTokens, kMask, {0, 2, 0, 3, 0, 0, 5, 0, 0, 6, 0, 0, 0}, 12), (Score{4, 3}));
  EXPECT_EQ(score(kTokens, kMask, {0, 2, 0, 0, 4, 0, 0, 0, 0, 6, 0, 0, 0}, 12), (Score{4, 2}));
  EXPECT_EQ(score(kTokens, kMask, {1, 0, 1, 0, 0, 1, 0, 9, 1, 0, 9, 1, 1}, 12), (Score{4, 0}));
}

// Windows of three targets: {2 . 3} {4 . 5} {end . 6} {end . .}. The first has an answer; the second's begins in the
// first, and its other has a question that lies there too; the third holds the last document from its beginning.
TEST(AnswerCounter, WhatAWindowCutsDoesNotCount) { EXPECT_EQ(score(kTokens, kMask, kTokens, 3), (Score{2, 2})); }

// A border just before a document, and one just after an answer: nothing is cut.
TEST(AnswerCounter, ABorderBesideAnAnswerCutsNothing) {
  const std::vector<int32_t> tokens = {1, 2, kEnd, 1, 3, 1, 1};
  const std::vector<int> mask = {0, 1, 1, 0, 1, 0, 0};
  EXPECT_EQ(score(tokens, mask, tokens, 3), (Score{2, 2}));  // {2 end .} {3 . .}: the document's first token is input
  const std::vector<int32_t> next = {1, 1, 2, 1, 3, 1, 1};
  const std::vector<int> next_mask = {0, 0, 1, 0, 1, 0, 0};
  EXPECT_EQ(score(next, next_mask, next, 2), (Score{1, 1}));  // {. 2} {. 3} {. .}: the second window has no question
}

// The last window ends with an answer that might go on.
TEST(AnswerCounter, AnAnswerWithoutAnEndDoesNotCount) {
  EXPECT_EQ(score({1, 1, 2}, {0, 0, 1}, {1, 1, 2}, 2), (Score{0, 0}));
}

TEST(AnswerCounter, LengthsAgree) {
  AnswerCounter counter(kEnd);
  EXPECT_THROW(counter.add_window(std::vector<int32_t>{1, 2}, std::vector<int32_t>{2, 3}, std::vector<int32_t>{1}),
               CheckFailure);
}

}  // namespace
}  // namespace nmoe
