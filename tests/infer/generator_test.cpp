#include "infer/generator.h"

#include <gtest/gtest.h>

#include <memory>

#include "support/errors.h"
#include "support/temp_dir.h"
#include "support/tiny_corpus.h"
#include "train/trainer.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

// A model of text in which "ab" is followed by "cd", and so on round.
class GeneratorTest : public testing::Test {
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

  static std::string generate(const std::string& prompt, int64_t max_tokens, const SamplingOptions& sampling,
                              int num_threads = 1) {
    Generator generator(checkpoint_, num_threads);
    std::string text;
    const GenerateResult result = generator.generate({.prompt = prompt, .max_tokens = max_tokens, .sampling = sampling},
                                                     [&](std::string_view piece) { text += piece; });
    EXPECT_LE(result.tokens, max_tokens);
    EXPECT_EQ(text.size(), static_cast<size_t>(result.tokens));  // a byte each
    EXPECT_EQ(result.ended, result.tokens < max_tokens);
    return text;
  }

  inline static std::unique_ptr<test::TempDir> dir_;
  inline static fs::path checkpoint_;
};

TEST_F(GeneratorTest, GoesOnAsTheTextDid) { EXPECT_EQ(generate("abcd ab", 8, {.temperature = 0}), "cd abcd "); }

// Only the last data.seq_len = 16 tokens count, however long the text has grown.
TEST_F(GeneratorTest, PromptsAndTextMayBeLongerThanASequence) {
  std::string prompt;
  for (int i = 0; i < 20; ++i) prompt += "abcd ";
  EXPECT_EQ(generate(prompt + "abc", 4, {.temperature = 0}), "d ab");
  EXPECT_EQ(generate("zzz" + prompt, 4, {.temperature = 0}), generate("yyyyyyy" + prompt, 4, {.temperature = 0}));
  const std::string text = generate("abcd ", 50, {.temperature = 0});
  EXPECT_EQ(text.substr(40), "abcd abcd ");
}

// Documents "pqrs" after an end: a model that sees none but its own document starts each at its first token.
TEST_F(GeneratorTest, GoesOnWithinItsDocumentOnly) {
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
                                       "train.steps=60", "train.stop_on_collapse=false", "optim.rest.lr=3e-2"});
  Generator generator(train(config, {.resume = false, .version = "0", .commit = "0"}).checkpoint, 1);
  for (const std::string prompt : {"", "p", "pqr"}) {
    std::string written;
    const GenerateResult result =
        generator.generate({.prompt = prompt, .max_tokens = 20, .sampling = {.temperature = 0}},
                           [&](std::string_view piece) { written += piece; });
    EXPECT_EQ(prompt + written, "pqrs\n");
    EXPECT_TRUE(result.ended);
  }
}

TEST_F(GeneratorTest, TheSeedDecides) {
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
TEST_F(GeneratorTest, IdsBeyondTheTokenizersAreNeverSampled) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    generate("a", 40, {.temperature = 1000.0, .seed = seed});
  }
}

TEST_F(GeneratorTest, PiecesAreWhatTheTokensStandFor) {
  Generator generator(checkpoint_, 1);
  std::vector<std::string> pieces;
  const GenerateResult result = generator.generate({.prompt = "abcd ", .max_tokens = 3, .sampling = {.temperature = 0}},
                                                   [&](std::string_view piece) { pieces.emplace_back(piece); });
  EXPECT_EQ(result.tokens, 3);
  EXPECT_FALSE(result.ended);
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "b", "c", ""}));
  EXPECT_EQ(
      generator.generate({.prompt = "", .max_tokens = 0}, [](std::string_view piece) { EXPECT_EQ(piece, ""); }).tokens,
      0);
}

TEST_F(GeneratorTest, TakesAFolderOfCheckpoints) {
  EXPECT_EQ(Generator(checkpoint_.parent_path(), 1).config().model.vocab_size, 320);
  EXPECT_TRUE(contains(error_of([] { Generator(dir_->path() / "no", 1); }).what(), "no checkpoint"));
}

}  // namespace
}  // namespace nmoe
