// Many requests at once, over models with random weights, on NMOE_TEST_DEVICE.
#include "infer/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <thread>

#include "infer/load_model.h"
#include "infer/random_engines.h"
#include "infer/transcript.h"
#include "infer/whole_logits.h"
#include "support/errors.h"
#include "support/log_sum.h"
#include "support/tiny_run.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;
using test::expect_same;
using test::generate;
using test::make_engine;
using test::mixed_requests;
using test::paged_requests;
using test::random_config;
using test::request_of;
using test::run_all;
using test::Transcript;

class EveryAttention : public test::AttentionTest {};

// Each alone in an engine of one slot; all together in as many slots, in three, and joining while others write.
TEST_P(EveryAttention, WhatARequestGetsDoesNotDependOnTheOthers) {
  const std::vector<GenerationRequest> requests = mixed_requests();
  std::vector<Transcript> alone;
  for (const GenerationRequest& request : requests) {
    alone.push_back(generate(*make_engine(config(), 1, 512, 1), request));
    EXPECT_EQ(alone.back().ids.size(), static_cast<size_t>(request.max_tokens));
  }
  for (const int64_t slots : {10, 3}) {
    const auto engine = make_engine(config(), slots, 512);
    std::vector<Transcript> together(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) engine->submit(requests[i], together[i].listener());
    run_all(*engine);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(together[i], alone[i]);
    }
  }
  const auto engine = make_engine(config(), 4, 512);
  std::vector<Transcript> joining(requests.size());
  for (size_t i = requests.size(); i-- > 0;) {
    engine->submit(requests[i], joining[i].listener());
    engine->step();
    engine->step();
  }
  run_all(*engine);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(joining[i], alone[i]);
  }
}

// On a GPU their products are training's, where they are wide enough, and they are padded.
TEST_P(EveryAttention, PassesOfManyRowsHaveTheBitsOfPassesOfFew) {
  std::vector<GenerationRequest> requests;
  for (const int64_t size : {700, 90, 655}) {
    requests.push_back(request_of(test::tiny_text(static_cast<size_t>(size), 7).substr(0, static_cast<size_t>(size)), 4,
                                  {.temperature = 0.8}));
  }
  const auto texts_of = [&](int64_t max_rows) {
    InferenceEngine engine(random_cached_model(
        config({"model.dim=64", "model.dense_dim=128", "model.moe.expert_dim=72"}), byte_tokenizer(),
        {.device = NMOE_TEST_DEVICE, .cached = {.num_slots = 3, .capacity = 1024, .max_rows = max_rows}}));
    std::vector<Transcript> texts(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) engine.submit(requests[i], texts[i].listener());
    run_all(engine);
    return texts;
  };
  const std::vector<Transcript> few = texts_of(256), many = texts_of(2048);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(few[i].ids.size(), 4u);
    expect_same(many[i], few[i]);
  }
}

// Each alone, and in caches of all sizes: with pages enough for all, and with so few that sequences are preempted.
TEST_P(EveryAttention, PagesChangeNoBit) {
  const std::vector<GenerationRequest> requests = paged_requests();
  std::vector<Transcript> alone;
  int64_t rereadable = 0;
  for (const GenerationRequest& request : requests) {
    alone.push_back(generate(*make_engine(config(), 1, 640, 1), request));
    rereadable += request.prompt_logprobs ? 0 : std::ssize(request.prompt) - 1;
  }
  for (const int64_t num_pages : {64, 11, 5}) {
    const auto engine = make_engine(config(), 6, 640, 2, num_pages * kPagePositions);
    EXPECT_EQ(engine->load().num_pages, num_pages);
    int64_t cached[2] = {};
    for (int64_t& of_round : cached) {  // in the second, prompts have been read before
      std::vector<Transcript> together(requests.size());
      for (size_t i = 0; i < requests.size(); ++i) {
        engine->submit(requests[i], together[i].listener());
        for (int step = 0; step < 3; ++step) engine->step();
      }
      run_all(*engine);
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(fmt::format("request {} in {} pages", i, num_pages));
        expect_same(together[i], alone[i]);
        EXPECT_EQ(together[i].prompts, requests[i].prompt_logprobs ? 1 : 0);
        for (size_t j = 1; j < together[i].prompt.size(); ++j) {
          EXPECT_EQ(together[i].prompt[j].logprob, alone[i].prompt[j].logprob) << j;
        }
        of_round += together[i].result->cached_tokens;
      }
      EXPECT_EQ(engine->load().pages_used, 0);
    }
    EXPECT_GT(cached[0], 0) << num_pages << " pages";
    if (num_pages == 64) {
      EXPECT_EQ(cached[1], rereadable) << "all of every prompt but its last token";
    }
    EXPECT_EQ(engine->load().preemptions > 0, num_pages < 64) << num_pages << " pages";
  }
}

// log p(ids[i] | ids before it), i > 0.
std::vector<float> whole_logprobs(const Config& config, const std::vector<int32_t>& ids) {
  const auto rows = test::whole_logits(config, ids, [&](WeightSet& weights, Ops& ops) {
    weights.initialise(ops, static_cast<uint64_t>(config.run.seed), config.model.init.truncation);
  });
  std::vector<float> logprobs;
  for (size_t i = 1; i < ids.size(); ++i) {
    const auto id = static_cast<size_t>(ids[i]);
    logprobs.push_back(test::log_sum(rows[i - 1]).logprob(rows[i - 1][id]));
  }
  return logprobs;
}

TEST_P(EveryAttention, LogprobsAreThoseOfTheWholeText) {
  const auto engine = make_engine(config(), 2, 128);
  GenerationRequest request =
      request_of("the cat sat near a river, and then it rained on the old house", 12, {.temperature = 0.8});
  request.prompt_logprobs = true;
  request.top_logprobs = 3;
  const Transcript transcript = generate(*engine, request);
  EXPECT_EQ(transcript.prompts, 1);
  ASSERT_EQ(transcript.prompt.size(), request.prompt.size());
  EXPECT_FALSE(transcript.prompt[0].logprob.has_value());
  EXPECT_TRUE(transcript.prompt[0].top.empty());

  std::vector<int32_t> ids = request.prompt;
  ids.insert(ids.end(), transcript.ids.begin(), transcript.ids.end());
  GenerationRequest scored = request;  // the whole text as a prompt: cut in other places, the same bits
  scored.prompt = ids;
  scored.max_tokens = 0;
  const Transcript scores = generate(*engine, scored);
  EXPECT_EQ(scores.result->output_tokens, 0);
  ASSERT_EQ(scores.prompt.size(), ids.size());
  const std::vector<float> whole = whole_logprobs(config(), ids);
  for (size_t i = 1; i < ids.size(); ++i) {
    const bool output = i >= request.prompt.size();
    const std::optional<float> logprob =
        output ? transcript.tokens[i - request.prompt.size()].logprob : transcript.prompt[i].logprob;
    EXPECT_EQ(scores.prompt[i].logprob, logprob) << i;
    if (config().run.precision != Precision::kBf16) {
      EXPECT_NEAR(*logprob, whole[i - 1], 1e-3) << i;
    }
    const std::vector<TokenLogprob>& top = scores.prompt[i].top;
    ASSERT_EQ(top.size(), 3u);
    EXPECT_GE(top[0].logprob, top[1].logprob);
    EXPECT_GE(top[0].logprob, *scores.prompt[i].logprob);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, EveryAttention, testing::ValuesIn(test::attentions()),
                         [](const auto& test) { return test.param.name; });

TEST(EngineTest, ANewPromptGoesOnFromWhatASlotHolds) {
  const auto engine = make_engine(random_config(), 2, 200), fresh = make_engine(random_config(), 2, 200);
  const std::string turn = test::tiny_text(80, 1);
  const Transcript first = generate(*engine, request_of(turn, 20, {.temperature = 0.8}));
  EXPECT_EQ(first.result->cached_tokens, 0);
  // The next turn: the first, its answer, and more. The answer's last token was never run.
  std::vector<int32_t> prompt(turn.begin(), turn.end());
  prompt.insert(prompt.end(), first.ids.begin(), first.ids.end());
  const auto in_cache = static_cast<int64_t>(prompt.size()) - 1;
  for (const char byte : std::string(" and then?")) prompt.push_back(byte);
  GenerationRequest request = request_of("", 15, {.temperature = 0.8, .seed = 4});
  request.prompt = prompt;
  const Transcript second = generate(*engine, request);
  EXPECT_EQ(second.result->cached_tokens, in_cache);
  expect_same(second, generate(*fresh, request));

  // A prompt that shares but a little takes the other slot, and the long one stays.
  EXPECT_EQ(generate(*engine, request_of(turn.substr(0, 4) + std::string(60, 'x'), 2, {})).result->cached_tokens, 0);
  EXPECT_GE(generate(*engine, request).result->cached_tokens, in_cache);
  // The same prompt again: all but its last token.
  EXPECT_EQ(generate(*engine, request).result->cached_tokens, static_cast<int64_t>(prompt.size()) - 1);
  // Logprobs of a prompt need all of it.
  request.prompt_logprobs = true;
  EXPECT_EQ(generate(*engine, request).result->cached_tokens, 0);
}

TEST(EngineTest, RequestsWaitForSlots) {
  const auto engine = make_engine(random_config(), 2);
  Transcript transcripts[3];
  for (int i = 0; i < 3; ++i) engine->submit(request_of("abc", i == 1 ? 2 : 6, {}), transcripts[i].listener());
  EXPECT_EQ(engine->load().waiting, 3);
  engine->step();
  EXPECT_EQ(engine->load().running, 2);
  EXPECT_EQ(engine->load().waiting, 1);
  EXPECT_EQ(engine->load().max_sequences, 2);
  EXPECT_EQ(transcripts[0].ids.size(), 1u);
  EXPECT_EQ(transcripts[2].ids.size(), 0u);
  engine->step();
  EXPECT_TRUE(transcripts[1].result.has_value());
  engine->step();
  EXPECT_EQ(transcripts[2].ids.size(), 1u);
  run_all(*engine);
  for (const Transcript& transcript : transcripts) EXPECT_EQ(transcript.result->reason, FinishReason::kLength);
  EXPECT_EQ(transcripts[2].ids, transcripts[0].ids);
  EXPECT_EQ(engine->load().running + engine->load().waiting, 0);
  EXPECT_FALSE(engine->step());
}

TEST(EngineTest, RequestsWithTheSameBeginningShareItsPages) {
  const auto engine = make_engine(random_config(), 3, 512);
  const std::string prompt = test::tiny_text(400, 1).substr(0, 300);
  Transcript first, second;
  engine->submit(request_of(prompt, 30, {}), first.listener());
  while (first.ids.empty()) engine->step();
  EXPECT_EQ(engine->load().pages_used, 3);
  engine->submit(request_of(prompt, 30, {}), second.listener());
  engine->step();
  EXPECT_EQ(engine->load().running, 2);
  EXPECT_EQ(engine->load().pages_used, 4);
  run_all(*engine);
  EXPECT_EQ(second.result->cached_tokens, 2 * kPagePositions);
  expect_same(second, first);
  EXPECT_EQ(engine->load().pages_used, 0);
  EXPECT_EQ(engine->load().pages_kept, 3);
}

// The youngest gives way, comes back in front of those that wait, and what it has said stands.
TEST(EngineTest, ThePreemptedGoOnWhereTheyWere) {
  const auto engine = make_engine(random_config(), 3, 512, 2, 4 * kPagePositions);
  const std::string prompt = test::tiny_text(400, 1).substr(0, 120), other = test::tiny_text(400, 2).substr(0, 125);
  Transcript old, young, last;
  engine->submit(request_of(prompt, 300, {}), old.listener());
  engine->submit(request_of(other, 250, {.temperature = 0.8, .seed = 3}), young.listener());
  while (engine->load().preemptions == 0) ASSERT_TRUE(engine->step());
  EXPECT_EQ(engine->load().running, 1);
  engine->submit(request_of(prompt, 4, {}), last.listener());
  const size_t said = young.ids.size();
  EXPECT_GT(said, 0u);
  EXPECT_FALSE(old.result.has_value());
  while (!old.result) ASSERT_TRUE(engine->step());
  EXPECT_EQ(young.ids.size(), said) << "it waits for pages";
  EXPECT_FALSE(last.result.has_value()) << "and others wait behind it";
  run_all(*engine);
  EXPECT_EQ(young.result->reason, FinishReason::kLength);
  EXPECT_EQ(young.result->cached_tokens, 0) << "of its prompt, when it first came";
  expect_same(young,
              generate(*make_engine(random_config(), 1, 512), request_of(other, 250, {.temperature = 0.8, .seed = 3})));
  expect_same(old, generate(*make_engine(random_config(), 1, 512), request_of(prompt, 300, {})));
}

TEST(EngineTest, ThePreemptedCanBeCancelled) {
  const auto engine = make_engine(random_config(), 2, 512, 2, 4 * kPagePositions);
  Transcript old, young;
  engine->submit(request_of(test::tiny_text(400, 1).substr(0, 120), 300, {}), old.listener());
  const RequestId id = engine->submit(request_of(test::tiny_text(400, 2).substr(0, 120), 300, {}), young.listener());
  while (engine->load().preemptions == 0) ASSERT_TRUE(engine->step());
  const size_t said = young.ids.size();
  engine->cancel(id);
  engine->step();
  ASSERT_TRUE(young.result.has_value());
  EXPECT_EQ(young.result->reason, FinishReason::kCancelled);
  EXPECT_EQ(young.result->output_tokens, static_cast<int64_t>(said));
  run_all(*engine);
  EXPECT_EQ(old.ids.size(), 300u);
  EXPECT_EQ(engine->load().pages_used, 0);
}

// All pages together are what the longest text has.
TEST(EngineTest, ACacheSmallerThanTheContextIsTheContext) {
  const auto engine = make_engine(random_config(), 2, 512, 2, 200);
  EXPECT_EQ(engine->max_context(), 2 * kPagePositions);
  GenerationRequest request = request_of(test::tiny_text(400, 1).substr(0, 250), 50, {});
  const Transcript got = generate(*engine, request);
  EXPECT_EQ(got.result->reason, FinishReason::kLength);
  EXPECT_EQ(got.ids.size(), 7u);  // the last one has no place
  request.prompt.resize(257, 'a');
  const Error error = error_of([&] { engine->submit(request, {}); });
  EXPECT_EQ(std::string(error.what()), "the prompt has 257 tokens, the context 256");
  EXPECT_TRUE(contains(error.remedy(), "--cache-positions"));
  EXPECT_THROW(make_engine(random_config(), 2, 512, 2, -1), Error);
}

TEST(EngineTest, CancelledRequestsEnd) {
  const auto engine = make_engine(random_config(), 1);
  Transcript running, waiting, after;
  const RequestId first = engine->submit(request_of("abc", 50, {}), running.listener());
  const RequestId second = engine->submit(request_of("abc", 50, {}), waiting.listener());
  engine->submit(request_of("abc", 3, {}), after.listener());
  for (int i = 0; i < 4; ++i) engine->step();
  engine->cancel(second);
  engine->cancel(first);
  engine->cancel(12345);
  engine->step();
  EXPECT_EQ(running.result->reason, FinishReason::kCancelled);
  EXPECT_EQ(running.result->output_tokens, 4);
  EXPECT_EQ(waiting.result->reason, FinishReason::kCancelled);
  EXPECT_EQ(waiting.result->output_tokens, 0);
  EXPECT_EQ(finish_reason_name(waiting.result->reason), "cancelled");
  run_all(*engine);
  EXPECT_EQ(after.result->reason, FinishReason::kLength);
  EXPECT_EQ(std::vector<int32_t>(running.ids.begin(), running.ids.begin() + 3), after.ids);
}

// One listener fails while several requests are being cancelled: the others are cancelled in the next step.
TEST(EngineTest, CancellingGoesOnAfterAListenerThrew) {
  const auto engine = make_engine(random_config(), 2);
  GenerationListener bad;
  bad.on_finish = [](const GenerationResult&) { throw std::runtime_error("no"); };
  Transcript other;
  const RequestId first = engine->submit(request_of("abc", 50, {}), bad);
  const RequestId second = engine->submit(request_of("abc", 50, {}), other.listener());
  engine->step();
  engine->cancel(first);
  engine->cancel(second);
  EXPECT_THROW(engine->step(), std::runtime_error);
  EXPECT_FALSE(engine->step());
  EXPECT_EQ(other.result->reason, FinishReason::kCancelled);
}

TEST(EngineTest, StopIdsEndATextWithoutBeingPartOfIt) {
  const auto engine = make_engine(random_config(), 1);
  const Transcript whole = generate(*engine, request_of("abc", 12, {.temperature = 1.0}));
  const int32_t stop = whole.ids[5];
  const auto before = static_cast<int64_t>(std::find(whole.ids.begin(), whole.ids.end(), stop) - whole.ids.begin());
  GenerationRequest request = request_of("abc", 12, {.temperature = 1.0});
  request.stop_ids = {stop};
  const Transcript ended = generate(*engine, request);
  EXPECT_EQ(ended.result->reason, FinishReason::kStop);
  EXPECT_EQ(ended.result->stop, "");
  EXPECT_EQ(ended.result->output_tokens, before);
  EXPECT_EQ(ended.ids, std::vector<int32_t>(whole.ids.begin(), whole.ids.begin() + before));
  // What ended it is told by itself, as likely as it was where it did not end anything.
  EXPECT_FALSE(whole.result->end.has_value());
  ASSERT_TRUE(ended.result->end.has_value());
  EXPECT_EQ(ended.result->end->id, stop);
  EXPECT_EQ(ended.result->end->logprob, whole.tokens[static_cast<size_t>(before)].logprob);
}

TEST(EngineTest, ThePenaltyCountsPromptAndOutput) {
  const auto engine = make_engine(random_config(), 1, 300);
  const Transcript plain = generate(*engine, request_of("abcabc", 40, {.temperature = 0}));
  const Transcript penalised =
      generate(*engine, request_of("abcabc", 40, {.repetition_penalty = 1e6, .temperature = 0}));
  const std::set<int32_t> ids(penalised.ids.begin(), penalised.ids.end());
  EXPECT_EQ(ids.size(), 40u) << "none twice";
  for (const int32_t id : {'a', 'b', 'c'}) EXPECT_FALSE(ids.contains(id));
  EXPECT_LT(std::set<int32_t>(plain.ids.begin(), plain.ids.end()).size(), 40u);
}

TEST(EngineTest, WhatAListenerThrowsEndsItsRequestAlone) {
  const auto engine = make_engine(random_config(), 3);
  Transcript first, last;
  engine->submit(request_of("abc", 8, {.seed = 1}), first.listener());
  GenerationListener bad;
  int tokens = 0;
  bad.on_token = [&](const GeneratedToken&) {
    if (++tokens == 2) throw std::runtime_error("no");
  };
  engine->submit(request_of("abc", 8, {}), bad);
  engine->submit(request_of("xyz", 8, {.seed = 2}), last.listener());
  engine->step();
  EXPECT_THROW(engine->step(), std::runtime_error);
  run_all(*engine);
  EXPECT_EQ(tokens, 2);
  // In the first step of all: the others are still waited for.
  Transcript beside;
  tokens = 1;
  engine->submit(request_of("abc", 2, {}), bad);
  engine->submit(request_of("abc", 2, {}), beside.listener());
  EXPECT_THROW(engine->step(), std::runtime_error);
  EXPECT_EQ(engine->load().running, 1);
  EXPECT_TRUE(engine->wait(std::chrono::milliseconds(0)));
  run_all(*engine);
  EXPECT_TRUE(beside.result.has_value());
  expect_same(first, generate(*make_engine(random_config(), 1), request_of("abc", 8, {.seed = 1})));
  expect_same(last, generate(*make_engine(random_config(), 1), request_of("xyz", 8, {.seed = 2})));
}

TEST(EngineTest, OtherThreadsMaySubmit) {
  const auto engine = make_engine(random_config(), 4);
  const Transcript expected = generate(*make_engine(random_config(), 1), request_of("abc", 10, {}));
  constexpr size_t kThreads = 3, kEach = 5;
  std::vector<Transcript> transcripts(kThreads * kEach);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t i = 0; i < kEach; ++i) {
        engine->submit(request_of("abc", 10, {}), transcripts[thread * kEach + i].listener());
        engine->cancel(1'000'000);
      }
    });
  }
  const auto unfinished = [](const Transcript& transcript) { return !transcript.result.has_value(); };
  while (std::any_of(transcripts.begin(), transcripts.end(), unfinished)) {
    if (engine->wait(std::chrono::seconds(10))) engine->step();
  }
  for (std::thread& thread : threads) thread.join();
  for (const Transcript& transcript : transcripts) expect_same(transcript, expected);
  run_all(*engine);
  EXPECT_FALSE(engine->wait(std::chrono::milliseconds(1)));
}

TEST(EngineTest, RequestsThatCannotBeServedAreRefused) {
  const auto engine = make_engine(random_config(), 1, 8);
  const auto fault = [&](auto&& change) {
    GenerationRequest request = request_of("abc", 4, {});
    change(request);
    const Error error = error_of([&] { engine->submit(request, {}); });
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(error.remedy(), "");
    return std::string(error.what());
  };
  EXPECT_EQ(fault([](auto& r) { r.prompt.clear(); }), "the prompt is empty");
  EXPECT_EQ(fault([](auto& r) { r.prompt[1] = 257; }), "the prompt has id 257, the tokenizer has 257");
  EXPECT_EQ(fault([](auto& r) { r.prompt.resize(9); }), "the prompt has 9 tokens, the context 8");
  EXPECT_EQ(fault([](auto& r) { r.max_tokens = -1; }), "max_tokens is -1");
  EXPECT_EQ(fault([](auto& r) { r.sampling.min_p = 2; }), "min_p is 2");
  EXPECT_EQ(fault([](auto& r) { r.stop = {"x", ""}; }), "a stop string is empty");
  EXPECT_EQ(fault([](auto& r) { r.top_logprobs = 258; }), "top_logprobs is 258");
  EXPECT_EQ(fault([](auto& r) {
              r.top_logprobs = 1;
              r.logprobs = false;
            }),
            "top_logprobs is 1");
  EXPECT_FALSE(engine->step());
}

}  // namespace
}  // namespace nmoe
