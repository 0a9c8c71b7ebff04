// Generation with states that cannot go back to an earlier position.
#include <gtest/gtest.h>

#include <stdexcept>

#include "config/load.h"
#include "infer/engine.h"
#include "infer/recurrent_model.h"
#include "infer/transcript.h"
#include "support/log_sum.h"
#include "support/tiny_run.h"

namespace nmoe {
namespace {

using test::generate;
using test::run_all;
using test::Transcript;

std::unique_ptr<InferenceEngine> make_recurrent(int64_t slots, int64_t cache_positions = 0) {
  const Config config = parse_config(test::kTinyToml, "tiny.toml", std::vector<std::string>{"model.vocab_size=257"});
  return std::make_unique<InferenceEngine>(test::recurrent_model(
      config, {.num_slots = slots, .capacity = 512, .cache_positions = cache_positions, .max_scores = 0}));
}

std::vector<int32_t> ids_of(const std::string& text) { return {text.begin(), text.end()}; }

GenerationRequest recurrent_request(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling = {.temperature = seed % 2 == 0 ? 0.0 : 0.9, .seed = seed};
  request.ignore_eos = true;
  request.logprobs = true;
  return request;
}

// Every token's probability is that of the sum over exactly the tokens before it.
void expect_right(const GenerationRequest& request, const Transcript& got) {
  ASSERT_EQ(std::ssize(got.ids), request.max_tokens);
  std::vector<int32_t> text = request.prompt;
  text.insert(text.end(), got.ids.begin(), got.ids.end());
  const auto rows = test::logits_of_text(text);
  for (size_t i = 0; i < got.ids.size(); ++i) {
    const std::vector<float>& logits = rows[request.prompt.size() + i - 1];
    const float expected = test::log_sum(logits).logprob(logits[static_cast<size_t>(got.ids[i])]);
    EXPECT_EQ(got.tokens[i].logprob, expected) << "token " << i;
  }
}

TEST(RecurrentGeneration, EveryRequestGoesOnFromItsOwnSum) {
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 12; ++i) {
    requests.push_back(
        recurrent_request(ids_of(test::tiny_text(1 + 41 * (i % 8), i % 5)), 3 + static_cast<int64_t>(i % 4), i));
  }
  for (const int64_t slots : {1, 3, 16}) {
    const auto engine = make_recurrent(slots);
    for (int round = 0; round < 2; ++round) {  // in the second, slots hold texts that begin alike
      std::vector<Transcript> got(requests.size());
      for (size_t i = 0; i < requests.size(); ++i) engine->submit(requests[i], got[i].listener());
      run_all(*engine);
      for (size_t i = 0; i < requests.size(); ++i) expect_right(requests[i], got[i]);
    }
  }
}

// The preempted begin anew, and what free slots hold gives way to those that run.
TEST(RecurrentGeneration, FewPagesAreEnough) {
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 9; ++i) {
    requests.push_back(recurrent_request(ids_of(test::tiny_text(30 + 41 * (i % 4), i % 5)),
                                         100 + static_cast<int64_t>(20 * (i % 4)), i));
  }
  const auto engine = make_recurrent(4, 5 * kPagePositions);
  for (int round = 0; round < 2; ++round) {
    std::vector<Transcript> got(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) engine->submit(requests[i], got[i].listener());
    run_all(*engine);
    for (size_t i = 0; i < requests.size(); ++i) expect_right(requests[i], got[i]);
  }
  EXPECT_GT(engine->load().preemptions, 0);
}

// A text that waits for pages takes nothing from those that have ended before it can have what it needs.
TEST(RecurrentGeneration, OneThatWaitsForPagesTakesNothing) {
  const auto engine = make_recurrent(3, 4 * kPagePositions);
  const GenerationRequest first = recurrent_request(ids_of("the wild river"), 6, 2);
  const Transcript said = generate(*engine, first);
  EXPECT_EQ(engine->load().pages_used, 0);
  EXPECT_EQ(engine->load().pages_kept, 1) << "what has ended is no running sequence's";
  const GenerationRequest running = recurrent_request(ids_of(test::tiny_text(100, 1)), 200, 3);
  Transcript got;
  engine->submit(running, got.listener());
  engine->step();
  const RequestId waits = engine->submit(recurrent_request(ids_of(test::tiny_text(300, 2)), 4, 5), {});
  engine->step();
  EXPECT_EQ(engine->load().waiting, 1);
  EXPECT_EQ(engine->load().pages_used, 1);
  EXPECT_EQ(engine->load().pages_kept, 1);
  engine->cancel(waits);
  GenerationRequest second = recurrent_request(first.prompt, 4, 4);
  second.prompt.insert(second.prompt.end(), said.ids.begin(), said.ids.end());
  const Transcript next = generate(*engine, second);
  EXPECT_EQ(next.result->cached_tokens, std::ssize(first.prompt) + 5);
  expect_right(second, next);
  expect_right(running, got);
}

TEST(RecurrentGeneration, APrefixIsReusedOnlyWhereAStateStandsBehindIt) {
  const auto engine = make_recurrent(1);
  const GenerationRequest first = recurrent_request(ids_of("the wild river"), 6, 2);
  const Transcript said = generate(*engine, first);
  // A chat's next turn: everything that was said, and more. The last token was not run yet.
  std::vector<int32_t> turn = first.prompt;
  turn.insert(turn.end(), said.ids.begin(), said.ids.end());
  turn.push_back('!');
  const GenerationRequest second = recurrent_request(turn, 4, 3);
  const Transcript next = generate(*engine, second);
  EXPECT_EQ(next.result->cached_tokens, std::ssize(first.prompt) + 5);
  expect_right(second, next);
  // The same beginning, and the same text once more: the state is further on than either.
  for (const std::string text : {"the wild river and", "the wild river"}) {
    const GenerationRequest again = recurrent_request(ids_of(text), 5, 4);
    const Transcript got = generate(*engine, again);
    EXPECT_EQ(got.result->cached_tokens, 0) << text;
    expect_right(again, got);
  }
}

// Rows of those behind the one that throws were run, and are not told: they are not run on top of that.
TEST(RecurrentGeneration, WhatAListenerThrowsLeavesTheOthersAsTheyWere) {
  const auto engine = make_recurrent(3);
  const GenerationRequest before = recurrent_request(ids_of("abc"), 8, 1),
                          behind = recurrent_request(ids_of("xyz"), 8, 3);
  Transcript first, last;
  engine->submit(before, first.listener());
  GenerationListener bad;
  int tokens = 0;
  bad.on_token = [&](const GeneratedToken&) {
    if (++tokens == 2) throw std::runtime_error("no");
  };
  engine->submit(recurrent_request(ids_of("a dog"), 8, 5), bad);
  engine->submit(behind, last.listener());
  engine->step();
  EXPECT_THROW(engine->step(), std::runtime_error);
  run_all(*engine);
  EXPECT_EQ(tokens, 2);
  expect_right(before, first);
  expect_right(behind, last);
}

TEST(RecurrentGeneration, PromptsAreScoredFromTheirFirstToken) {
  const auto engine = make_recurrent(2);
  GenerationRequest request = recurrent_request(ids_of(test::tiny_text(300, 7)), 0, 1);
  generate(*engine, request);
  request.logprobs = false;
  request.prompt_logprobs = true;
  const Transcript got = generate(*engine, request);
  const auto rows = test::logits_of_text(request.prompt);
  ASSERT_EQ(got.prompt.size(), request.prompt.size());
  for (size_t i = 1; i < got.prompt.size(); ++i) {
    const auto id = static_cast<size_t>(request.prompt[i]);
    EXPECT_EQ(got.prompt[i].logprob, test::log_sum(rows[i - 1]).logprob(rows[i - 1][id]));
  }
}

}  // namespace
}  // namespace nmoe
