// Text from checkpoints of models that have learned something.
#include <gtest/gtest.h>

#include <memory>

#include "infer/transcript.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "support/tiny_corpus.h"
#include "train/loop/trainer.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;
using test::Transcript;

// A model of text in which "ab" is followed by "cd", and so on round.
class GenerationTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<test::TempDir>();
    std::string text;
    while (text.size() < 4000) text += "abcd ";
    test::write_corpus(dir_->path() / "data", text, text.substr(0, 500));
    // A vocabulary padded beyond the 257 ids there are.
    const Config config = test::tiny_config(
        dir_->path(), {"model.vocab_size=320", "train.steps=40", "optim.schedule.hold=40", "optim.rest.lr=3e-2"});
    checkpoint_ = train(config, {.resume = false, .version = "0", .commit = "0"}).checkpoint;
  }
  static void TearDownTestSuite() { dir_.reset(); }

  static Transcript record(InferenceEngine& engine, const std::string& prompt, int64_t max_tokens,
                           const SamplingOptions& sampling, std::vector<std::string> stop = {}) {
    GenerationRequest request;
    request.prompt = engine.encode_prompt(prompt);
    request.max_tokens = max_tokens;
    request.sampling = sampling;
    request.stop = std::move(stop);
    return test::generate(engine, request);
  }

  static std::string generate(const std::string& prompt, int64_t max_tokens, const SamplingOptions& sampling,
                              int num_threads = 1) {
    InferenceEngine engine(checkpoint_, {.num_threads = num_threads, .max_sequences = 1, .max_context = 64});
    const Transcript transcript = record(engine, prompt, max_tokens, sampling);
    EXPECT_LE(transcript.result->output_tokens, max_tokens);
    EXPECT_EQ(transcript.text.size(), static_cast<size_t>(transcript.result->output_tokens));  // a byte each
    EXPECT_EQ(transcript.result->reason == FinishReason::kStop, transcript.result->output_tokens < max_tokens);
    return transcript.text;
  }

  inline static std::unique_ptr<test::TempDir> dir_;
  inline static fs::path checkpoint_;
};

TEST_F(GenerationTest, GoesOnAsTheTextDid) { EXPECT_EQ(generate("abcd ab", 8, {.temperature = 0}), "cd abcd "); }

// The context is data.seq_len = 16 tokens where nothing else is said, the eos_id before the prompt included; the last
// token of the output needs no room.
TEST_F(GenerationTest, ATextEndsWhereTheContextIsFull) {
  InferenceEngine engine(checkpoint_, {.num_threads = 1});
  EXPECT_EQ(engine.max_context(), 16);
  const Transcript transcript = record(engine, "abcd ", 50, {.temperature = 0});
  EXPECT_EQ(transcript.text, "abcd abcd a");
  EXPECT_EQ(transcript.result->reason, FinishReason::kLength);
  EXPECT_EQ(transcript.result->prompt_tokens, 6);
  EXPECT_EQ(transcript.result->output_tokens, 11);

  EXPECT_EQ(record(engine, "abcd abcd abcd ", 5, {.temperature = 0}).text, "a");  // a prompt that fills it
  const Error error = error_of([&] { record(engine, "abcd abcd abcd a", 5, {}); });
  EXPECT_TRUE(contains(error.what(), "the prompt has 17 tokens, the context 16"));
  EXPECT_EQ(error.exit_code(), 2);
}

// Documents "pqrs" after an end: a model that sees none but its own document starts each at its first token.
TEST_F(GenerationTest, APromptAndItsOutputAreOneDocument) {
  const fs::path data = dir_->path() / "short";
  make_directories(dir_->path() / "short-text");
  std::string text;
  for (int i = 0; i < 600; ++i) text += "pqrs\n--\n";
  write_file_atomically(dir_->path() / "short-text/text.txt", text);
  prepare_dataset({.inputs = {(dir_->path() / "short-text/text.txt").string()},
                   .records = {.split_on = "--"},
                   .out = data,
                   .threads = 1});
  const Config config =
      test::tiny_config(dir_->path(), {"run.name=short", "data.path=" + data.string(), "data.mask_documents=true",
                                       "train.steps=55", "train.stop_on_collapse=false", "optim.rest.lr=3e-2"});
  InferenceEngine engine(train(config, {.resume = false, .version = "0", .commit = "0"}).checkpoint,
                         {.num_threads = 1, .max_sequences = 2});
  for (const std::string prompt : {"", "p", "pqr"}) {
    const Transcript transcript = record(engine, prompt, 15, {.temperature = 0});
    EXPECT_EQ(prompt + transcript.text, "pqrs\n");
    EXPECT_EQ(transcript.result->reason, FinishReason::kStop);
    EXPECT_EQ(transcript.result->output_tokens, static_cast<int64_t>(transcript.text.size()));
  }

  // What is written is what reading it says, the first token too where something is before it.
  GenerationRequest request;
  request.max_tokens = 4;
  request.sampling = {.temperature = 0};
  request.logprobs = true;
  request.prompt = engine.encode_prompt("p");
  const Transcript written = test::generate(engine, request);
  ASSERT_EQ(written.text, "qrs\n");
  request.prompt.insert(request.prompt.end(), written.ids.begin(), written.ids.end());
  request.max_tokens = 0;
  request.prompt_logprobs = true;
  const Transcript read = test::generate(engine, request);
  ASSERT_EQ(read.prompt.size(), 5u);
  EXPECT_FALSE(read.prompt[0].logprob.has_value());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(read.prompt[i + 1].logprob, written.tokens[i].logprob) << i;

  // A prompt and what is written to it are one document, whatever ids are in them: nothing of it is dropped.
  const int32_t eos = engine.tokenizer().eos_id();
  const auto next_to = [&](const std::vector<int32_t>& prompt) {
    GenerationRequest one;
    one.prompt = prompt;
    one.max_tokens = 3;
    one.sampling = {.temperature = 1.5, .seed = 5};
    one.ignore_eos = true;
    one.logprobs = true;
    return test::generate(engine, one);
  };
  const Transcript behind_z = next_to({'z', 'z', eos, 'p', 'q'}), behind_s = next_to({'s', 's', eos, 'p', 'q'}),
                   alone = next_to({'p', 'q'});
  EXPECT_NE(behind_z.tokens[0].logprob, behind_s.tokens[0].logprob);
  EXPECT_NE(behind_z.tokens[0].logprob, alone.tokens[0].logprob);
  for (const std::vector<int32_t>& prompt :
       {std::vector<int32_t>{'p', eos}, std::vector<int32_t>{eos, 'p', eos, 'q'}}) {
    const Transcript output = next_to(prompt);
    std::vector<int32_t> longer = prompt;
    longer.insert(longer.end(), output.ids.begin(), output.ids.end());
    GenerationRequest again;
    again.prompt = longer;
    again.max_tokens = 0;
    again.prompt_logprobs = true;
    const Transcript all = test::generate(engine, again);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(all.prompt[prompt.size() + i].logprob, output.tokens[i].logprob) << i;
    }
  }
}

TEST_F(GenerationTest, TheSeedDecides) {
  const SamplingOptions hot = {.temperature = 3.0, .seed = 7};
  const std::string text = generate("ab", 40, hot);
  EXPECT_EQ(generate("ab", 40, hot), text);
  EXPECT_EQ(generate("ab", 40, hot, /*num_threads=*/2), text);
  EXPECT_NE(generate("ab", 40, {.temperature = 3.0, .seed = 8}), text);
  // A shorter text is the beginning of a longer one.
  EXPECT_EQ(generate("ab", 20, hot), text.substr(0, 20));
  EXPECT_EQ(generate("ab", 12, {.temperature = 0, .seed = 7}), generate("ab", 12, {.temperature = 0, .seed = 8}));
}

// At this temperature all ids are nearly equally likely: were the 63 beyond the tokenizer's
// sampled, they would be met within a few dozen tokens.
TEST_F(GenerationTest, IdsBeyondTheTokenizersAreNeverSampled) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    generate("a", 40, {.temperature = 1000.0, .seed = seed});
  }
}

TEST_F(GenerationTest, PiecesAreWhatTheTokensStandFor) {
  InferenceEngine engine(checkpoint_, {.num_threads = 1});
  const Transcript transcript = record(engine, "abcd ", 3, {.temperature = 0});
  EXPECT_EQ(transcript.pieces, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(transcript.ids, (std::vector<int32_t>{'a', 'b', 'c'}));
  EXPECT_EQ(transcript.tokens[1].bytes, "b");
  EXPECT_EQ(transcript.result->reason, FinishReason::kLength);
  const Transcript nothing = record(engine, "", 0, {});
  EXPECT_EQ(nothing.text, "");
  EXPECT_EQ(nothing.result->output_tokens, 0);
}

TEST_F(GenerationTest, StopStringsAcrossTokensAreNeverShown) {
  InferenceEngine engine(checkpoint_, {.num_threads = 1});
  const Transcript stopped = record(engine, "abcd ab", 20, {.temperature = 0}, {"zz", "d a", "d ab"});
  EXPECT_EQ(stopped.text, "c");
  EXPECT_EQ(stopped.result->reason, FinishReason::kStop);
  EXPECT_EQ(stopped.result->stop, "d a");
  EXPECT_EQ(stopped.result->output_tokens, 4);  // one byte each: c, d, a space, a
  // What may become one is shown when it has not.
  const Transcript whole = record(engine, "abcd ab", 4, {.temperature = 0}, {"d abcx"});
  EXPECT_EQ(whole.text, "cd a");
  EXPECT_EQ(whole.pieces, (std::vector<std::string>{"c", "d a"}));
}

TEST_F(GenerationTest, TakesAFolderOfCheckpoints) {
  EXPECT_EQ(InferenceEngine(checkpoint_.parent_path(), {.num_threads = 1}).config().model.vocab_size, 320);
  EXPECT_TRUE(contains(error_of([] { InferenceEngine(dir_->path() / "no", {}); }).what(), "no checkpoint"));
}

TEST_F(GenerationTest, WhatDoesNotFitIsSaidBeforeItIsTaken) {
  const Error error =
      error_of([] { InferenceEngine(checkpoint_, {.max_sequences = 1 << 12, .max_context = 1 << 30}); });
  EXPECT_TRUE(contains(error.what(), "generation needs "));
  EXPECT_TRUE(contains(error.remedy(), "sequences at a time (now 4096)"));
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_THROW(InferenceEngine(checkpoint_, {.max_sequences = 0}), Error);
}

}  // namespace
}  // namespace nmoe
