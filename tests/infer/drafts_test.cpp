// Guesses of what texts go on with: what is guessed, how much of it is run, and that texts have the bits of none.
#include <gtest/gtest.h>

#include <numeric>

#include "infer/draft/draft_control.h"
#include "infer/draft/ngram_drafter.h"
#include "infer/random_engines.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;
using test::expect_same;
using test::generate;
using test::make_engine;
using test::run_all;
using test::Transcript;

std::vector<int32_t> guesses_of(const std::vector<int32_t>& tokens, int64_t max_drafts = 4) {
  NgramIndex index;
  std::vector<int32_t> guesses;
  index.draft(tokens, max_drafts, guesses);
  return guesses;
}

TEST(NgramIndexTest, GuessesWhatFollowedTheLastTokensBefore) {
  EXPECT_EQ(guesses_of({7, 1, 2, 3, 4, 5, 1, 2}, 2), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(guesses_of({1, 2, 3, 1, 2, 4, 9, 1, 2}, 1), (std::vector<int32_t>{4})) << "the latest place";
  EXPECT_EQ(guesses_of({8, 1, 2, 3, 9, 1, 2, 4, 8, 1, 2}, 1), (std::vector<int32_t>{3})) << "the longest run";
  EXPECT_EQ(guesses_of({1, 2, 3, 4}), std::vector<int32_t>{});
  EXPECT_EQ(guesses_of({1, 2, 3, 9, 2}), std::vector<int32_t>{}) << "one token is no run";
  EXPECT_EQ(guesses_of({}), std::vector<int32_t>{});
}

TEST(NgramIndexTest, AGuessThatReachesTheEndGoesOnWithItself) {
  EXPECT_EQ(guesses_of({5, 1, 2, 3, 1, 2, 3}, 7), (std::vector<int32_t>{1, 2, 3, 1, 2, 3, 1}));
  EXPECT_EQ(guesses_of({4, 4, 4}, 3), (std::vector<int32_t>{4, 4, 4}));
}

TEST(NgramIndexTest, OfATextThatGrowsItKnowsWhatItWouldOfTheWhole) {
  std::vector<int32_t> tokens;
  NgramIndex index;
  uint64_t state = 1;
  for (int i = 0; i < 300; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    tokens.push_back(static_cast<int32_t>(state >> 62));  // of four, so that runs come again
    std::vector<int32_t> guesses;
    if (i % 3 == 0) continue;  // tokens come by twos and threes, too
    index.draft(tokens, 5, guesses);
    EXPECT_EQ(guesses, guesses_of(tokens, 5)) << i;
  }
}

using Offers = std::vector<DraftControl::Offer>;

std::vector<int64_t> chosen(const Offers& offers) {
  std::vector<int64_t> counts;
  for (const DraftControl::Offer& offer : offers) counts.push_back(offer.chosen);
  return counts;
}

TEST(DraftControlTest, AGivenNumberIsRunAsFarAsThereIsRoom) {
  DraftControl control(3);
  Offers offers = {{.num_drafts = 5}, {.num_drafts = 0}, {.num_drafts = 2}};
  control.choose(3, 100, offers);
  EXPECT_EQ(chosen(offers), (std::vector<int64_t>{3, 0, 2}));
  control.choose(3, 3, offers);
  EXPECT_EQ(chosen(offers), (std::vector<int64_t>{2, 0, 1}));
  control.choose(3, 0, offers);
  EXPECT_EQ(chosen(offers), (std::vector<int64_t>{0, 0, 0}));
}

// Ten milliseconds, and one more for each row beyond the first.
DraftControl ten_and_one() {
  DraftControl control({});
  for (const int64_t rows : {1, 2, 8, 40}) control.record(rows, 0.009 + 0.001 * static_cast<double>(rows));
  return control;
}

TEST(DraftControlTest, RunsAsManyAsGiveTheMostTokensASecond) {
  // By hand: (1 + 0.8 + ... + 0.8^n) / (10 + n) is largest for n = 8: 4.329 / 18; n = 7: 4.161 / 17, n = 9: 4.463 / 19.
  double best = 0.0, tokens = 1.0, gain = 1.0;
  int64_t most = 0;
  for (int64_t n = 1; n <= 12; ++n) {
    tokens += gain *= 0.8;
    if (tokens / (10.0 + static_cast<double>(n)) > best) best = tokens / (10.0 + static_cast<double>(n)), most = n;
  }
  Offers one = {{.num_drafts = 12, .rate = 0.8}};
  ten_and_one().choose(1, 100, one);
  EXPECT_EQ(chosen(one), (std::vector<int64_t>{most}));
  // Those that are likelier first; one that is right at a rate of 0.05 costs more than it brings.
  Offers two = {{.num_drafts = 4, .rate = 0.05}, {.num_drafts = 4, .rate = 0.9}};
  ten_and_one().choose(2, 100, two);
  EXPECT_EQ(chosen(two), (std::vector<int64_t>{0, 4}));
  ten_and_one().choose(2, 3, two);
  EXPECT_EQ(chosen(two), (std::vector<int64_t>{0, 3}));
}

TEST(DraftControlTest, WhereRowsCostWhatTheyBringNoneAreRun) {
  // A CPU: twice the rows, twice the time.
  DraftControl control({});
  for (const int64_t rows : {1, 2, 4}) control.record(rows, 0.01 * static_cast<double>(rows));
  Offers offers = {{.num_drafts = 8, .rate = 0.9}};
  control.choose(1, 100, offers);
  EXPECT_EQ(chosen(offers), (std::vector<int64_t>{0}));
}

// Of 10,000 steps whose guesses are never worth it, those that look whether that is still so take a fiftieth at most.
TEST(DraftControlTest, ProbesTakeTheirShareOfTheTime) {
  DraftControl control({});
  DraftRate rate;
  double plain = 0.0, taken = 0.0;
  int64_t probes = 0;
  for (int step = 0; step < 10'000; ++step) {
    Offers offers(4, DraftControl::Offer{.num_drafts = 6, .rate = rate.rate()});
    control.choose(4, 100, offers);
    int64_t rows = 4;
    for (const DraftControl::Offer& offer : offers) rows += offer.chosen;
    if (rows > 4) ++probes;
    rate.judge(false);
    const double seconds = 0.001 * static_cast<double>(rows);
    control.record(rows, seconds);
    plain += 0.004;
    taken += seconds;
  }
  EXPECT_GT(probes, 50);
  EXPECT_LT(taken, 1.03 * plain);
}

// When steps of many rows become cheap, guesses are run again.
TEST(DraftControlTest, ItNoticesThatGuessesPayAgain) {
  DraftControl control({});
  const auto step = [&](double seconds_a_row) {
    Offers offers = {{.num_drafts = 4, .rate = 0.9}};
    control.choose(1, 100, offers);
    control.record(1 + offers[0].chosen, 0.01 + seconds_a_row * static_cast<double>(offers[0].chosen));
    return offers[0].chosen;
  };
  int64_t run = 0;
  for (int i = 0; i < 1000; ++i) run += step(0.05);
  EXPECT_LT(run, 20);
  int64_t last = 0;
  for (int i = 0; i < 6000; ++i) last = std::max(step(0.0), i < 5900 ? 0 : last);
  EXPECT_EQ(last, 4);
}

// ---- engines ----

class DraftsOfEveryAttention : public test::AttentionTest {};

// Of any number of tokens at a time, in engines of one slot and of several, some of which preempt each other.
TEST_P(DraftsOfEveryAttention, ChangeNoBit) {
  std::vector<GenerationRequest> requests = test::mixed_requests();
  for (uint64_t i = 0; i < 3; ++i) {  // that repeat themselves sooner or later
    requests.push_back(test::request_of(test::tiny_text(20, i), 60, {.temperature = 0.0, .seed = i}));
    requests.back().top_logprobs = i == 1 ? 2 : 0;
    requests.back().prompt_logprobs = i == 2;
    if (i == 0) requests.back().sampling.repetition_penalty = 1.05;
  }
  std::vector<Transcript> alone;
  for (const GenerationRequest& request : requests) {
    alone.push_back(generate(*make_engine(config(), 1, 512, 1), request));
  }
  for (const std::optional<int64_t> tokens : {std::optional<int64_t>(), std::optional<int64_t>(1),
                                              std::optional<int64_t>(5), std::optional<int64_t>(kMostDrafts)}) {
    for (const auto& [slots, pages] : {std::pair<int64_t, int64_t>(1, 0), {5, 0}, {6, 9}}) {
      const DraftOptions draft{.kind = DraftKind::kNgram, .tokens = tokens};
      const auto engine = make_engine(config(), slots, 512, 2, pages * kPagePositions, draft);
      std::vector<Transcript> drafted(requests.size());
      for (size_t i = 0; i < requests.size(); ++i) {
        engine->submit(requests[i], drafted[i].listener());
        engine->step();
      }
      run_all(*engine);
      int64_t run = 0, right = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(fmt::format("request {}, {} slots, {} pages, {} tokens", i, slots, pages, tokens.value_or(0)));
        expect_same(drafted[i], alone[i]);
        EXPECT_EQ(drafted[i].result->reason, alone[i].result->reason);
        ASSERT_EQ(drafted[i].tokens.size(), alone[i].tokens.size());
        for (size_t j = 0; j < drafted[i].tokens.size(); ++j) {
          ASSERT_EQ(drafted[i].tokens[j].top.size(), alone[i].tokens[j].top.size());
        }
        run += drafted[i].result->drafted_tokens;
        right += drafted[i].result->accepted_tokens;
        EXPECT_LE(drafted[i].result->accepted_tokens, drafted[i].result->output_tokens);
      }
      const DraftCounts counts = engine->load().drafts;
      EXPECT_EQ(counts.drafted, run);
      EXPECT_EQ(counts.num_accepted(), right);
      if (tokens) {
        EXPECT_GT(right, 5) << "nothing was guessed";
      }
      EXPECT_EQ(engine->load().pages_used, 0);
      EXPECT_LE(run, tokens.value_or(kMostDrafts) * counts.steps);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Drafts, DraftsOfEveryAttention, testing::ValuesIn(test::attentions()),
                         [](const auto& test) { return test.param.name; });

GenerationRequest repeating() {
  return test::request_of("the cat sat near the river, the cat sat near the river, the cat", 80, {.temperature = 0.0});
}

TEST(DraftsTest, StepsAreFewerByWhatWasRight) {
  const auto steps_of = [](const DraftOptions& draft) {
    const auto engine = make_engine(test::random_config(), 1, 256, 1, 0, draft);
    Transcript transcript;
    engine->submit(repeating(), transcript.listener());
    int64_t steps = 1;
    while (engine->step()) ++steps;
    return std::pair(steps, transcript.result->accepted_tokens);
  };
  const auto [plain, none] = steps_of({});
  const auto [drafted, right] = steps_of({.kind = DraftKind::kNgram, .tokens = 8});
  EXPECT_EQ(none, 0);
  EXPECT_GT(right, 10);
  EXPECT_EQ(drafted, plain - right);
}

TEST(DraftsTest, WhatEndsATextEndsItAmongGuesses) {
  GenerationRequest request = repeating();
  const Transcript whole = generate(*make_engine(test::random_config(), 1, 256, 1), request);
  request.stop_ids = {whole.ids[50]};
  request.stop = {whole.text.substr(60, 8)};
  const Transcript plain = generate(*make_engine(test::random_config(), 1, 256, 1), request);
  const Transcript drafted =
      generate(*make_engine(test::random_config(), 1, 256, 1, 0, {.kind = DraftKind::kNgram, .tokens = 16}), request);
  expect_same(drafted, plain);
  EXPECT_EQ(drafted.result->reason, plain.result->reason);
  EXPECT_EQ(drafted.result->stop, plain.result->stop);
  EXPECT_EQ(drafted.result->output_tokens, plain.result->output_tokens);
}

TEST(DraftsTest, TheCancelledEnd) {
  const auto engine = make_engine(test::random_config(), 2, 256, 1, 0, {.kind = DraftKind::kNgram, .tokens = 4});
  Transcript first, second;
  const RequestId id = engine->submit(repeating(), first.listener());
  engine->submit(repeating(), second.listener());
  for (int i = 0; i < 6; ++i) engine->step();
  engine->cancel(id);
  run_all(*engine);
  EXPECT_EQ(first.result->reason, FinishReason::kCancelled);
  expect_same(second, generate(*make_engine(test::random_config(), 1, 256, 1), repeating()));
}

TEST(DraftsTest, NumbersOutOfRangeAreRefused) {
  for (const int64_t tokens : {int64_t{0}, int64_t{-1}, kMostDrafts + 1}) {
    const Error error = error_of([&] { check_drafts({.kind = DraftKind::kNgram, .tokens = tokens}); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_TRUE(contains(error.remedy(), "from 1 to 16"));
  }
}

}  // namespace
}  // namespace nmoe
