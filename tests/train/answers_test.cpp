#include "train/loop/answers.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "data/stream/loader.h"

namespace nmoe {
namespace {

constexpr int32_t kEnd = 9;

struct Score {
  int64_t answers = 0;
  int64_t correct = 0;
  bool operator==(const Score&) const = default;
};

struct Windows {
  std::vector<std::vector<int32_t>> targets, predictions;
  std::vector<std::vector<uint8_t>> ends;

  size_t size() const { return targets.size(); }
  AnswerCounter::Window operator[](size_t i) const { return {targets[i], ends[i]}; }
};

// `tokens` and `mask` cut into windows of `seq_len`; `predicted[i]` in place of tokens[i], the first of which nobody
// predicts.
Windows cut(const std::vector<int32_t>& tokens, const std::vector<int>& mask, const std::vector<int32_t>& predicted,
            size_t seq_len) {
  Windows windows;
  for (size_t first = 0; first + seq_len < tokens.size(); first += seq_len) {
    auto& ends = windows.ends.emplace_back();
    auto& targets = windows.targets.emplace_back();
    auto& predictions = windows.predictions.emplace_back();
    for (size_t i = first; i < first + seq_len; ++i) {
      ends.push_back(tokens[i] == kEnd ? 1 : 0);
      targets.push_back(mask[i + 1] != 0 ? tokens[i + 1] : kNoTarget);
      predictions.push_back(predicted[i + 1]);
    }
    ends.push_back(tokens[first + seq_len] == kEnd ? 1 : 0);
  }
  return windows;
}

// Of windows [begin, end), the others being counted elsewhere.
Score score(const Windows& windows, size_t begin, size_t end) {
  AnswerCounter counter;
  if (begin > 0) counter.begin_behind(windows[begin - 1]);
  for (size_t i = begin; i < end; ++i) counter.add_window(windows[i], windows.predictions[i]);
  if (end < windows.size()) counter.end_before(windows[end]);
  return {counter.answers(), counter.correct()};
}

Score score(const std::vector<int32_t>& tokens, const std::vector<int>& mask, const std::vector<int32_t>& predicted,
            size_t seq_len) {
  const Windows windows = cut(tokens, mask, predicted, seq_len);
  return score(windows, 0, windows.size());
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

// Wherever windows are divided, the parts have as many answers as the whole.
TEST(AnswerCounter, PartsOfASplitAddUp) {
  const Philox rng(3, "answers");
  for (uint64_t round = 0; round < 200; ++round) {
    constexpr size_t kTokenCount = 61;
    std::vector<int32_t> tokens, predicted;
    std::vector<int> mask;
    for (uint64_t i = 0; i < kTokenCount; ++i) {
      const uint64_t bits = rng.bits(round * kTokenCount + i);
      tokens.push_back(bits % 5 == 0 ? kEnd : 1);
      mask.push_back(bits / 5 % 3 == 0 ? 0 : 1);
      predicted.push_back(bits / 15 % 4 == 0 ? 2 : tokens.back());
    }
    const Windows windows = cut(tokens, mask, predicted, 1 + round % 6);
    const size_t count = windows.size();
    const Score whole = score(windows, 0, count);
    for (size_t border = 1; border < count; ++border) {
      const Score left = score(windows, 0, border), right = score(windows, border, count);
      ASSERT_EQ((Score{left.answers + right.answers, left.correct + right.correct}), whole);
    }
  }
}

TEST(AnswerCounter, LengthsAgree) {
  AnswerCounter counter;
  const std::vector<int32_t> two = {2, 3}, one = {1};
  const std::vector<uint8_t> none(3);
  EXPECT_THROW(counter.add_window({two, none}, one), CheckFailure);
  EXPECT_THROW(counter.add_window({two, std::span(none).first(2)}, two), CheckFailure);
}

}  // namespace
}  // namespace nmoe
