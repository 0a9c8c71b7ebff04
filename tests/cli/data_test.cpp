// Corpora and tokenizers as a user meets them.
#include <algorithm>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

class DataCommandTest : public CliTest {
 protected:
  // The only shard of the training split.
  fs::path shard() const {
    for (const auto& entry : fs::directory_iterator(dir_ / "data/train")) {
      if (entry.path().extension() == ".npy") return entry.path();
    }
    return "no shard";
  }
};

TEST_F(DataCommandTest, PrepSaysWhatItMade) {
  const std::string text = output({"prep", "train.txt", "--valid", "valid.txt", "--out", "data"});
  const auto size = fs::file_size(dir_ / "train.txt");
  EXPECT_TRUE(contains(text, fmt::format("train 1 documents, {} tokens, {} bytes", size + 1, size)));
  EXPECT_TRUE(contains(text, "valid 1 documents"));

  expect_error(n({"prep", "train.txt", "--out", "data"}), 2, "there is a dataset already", "--force");
  expect_error(n({"prep", "no.txt", "--out", "other"}), 2, "no.txt", "");
  EXPECT_FALSE(fs::exists(dir_ / "other"));
}

TEST_F(DataCommandTest, TokenizerRoundTrip) {
  EXPECT_TRUE(contains(
      output({"tokenizer", "train", "train.txt", "--vocab-size", "300", "--out", "bpe/tokenizer.json"}), "300 ids"));
  std::string text = "The cat's 3 dogs \xC3\xA9\xE2\x82\xAC\n\n\ttab <|endoftext|>";
  text += '\0';
  text += "\xFF\x80 no UTF-8";
  std::string ids_of_bytes;
  for (const char* tokenizer : {"bytes", "bpe/tokenizer.json"}) {
    const std::string ids = output({"tokenizer", "encode", tokenizer}, text);
    EXPECT_EQ(output({"tokenizer", "decode", tokenizer}, ids), text);
    // Byte pairs that were learned make fewer ids.
    if (!ids_of_bytes.empty()) {
      EXPECT_LT(std::ranges::count(ids, ' '), std::ranges::count(ids_of_bytes, ' '));
    }
    ids_of_bytes = ids;
  }
  EXPECT_EQ(output({"tokenizer", "encode", "bytes"}, "ab"), "97 98\n");
  EXPECT_TRUE(contains(output({"tokenizer", "info", "bpe/tokenizer.json"}), "300 ids"));

  expect_error(n({"tokenizer", "decode", "bytes"}, "97 257"), 2, "\"257\" (number 2 of the input) is not an id",
               "from 0 to 256");
  expect_error(n({"tokenizer", "encode", "no.json"}, "a"), 1, "no.json", "");
  write("broken.json", "{");
  expect_error(n({"tokenizer", "encode", "broken.json"}, "a"), 1, "broken.json", "");
}

TEST_F(DataCommandTest, SynthesizeMakesACorpusToTrainOn) {
  const std::string text = output({"data", "synthesize", "cfg", "data", "--documents", "200", "--valid-documents", "20",
                                   "--set", "depth=3", "--set", "symbols=4"});
  EXPECT_TRUE(contains(text, "train 200 documents"));
  EXPECT_TRUE(contains(text, "valid 20 documents"));
  EXPECT_TRUE(contains(text, "nats per token (exact)"));
  EXPECT_TRUE(fs::exists(dir_ / "data/ground_truth.json"));
  EXPECT_TRUE(contains(output({"tokenizer", "info", "data/tokenizer.json"}), "5 ids"));
  output(train({"train.steps=2", "data.mask_documents=true"}));

  expect_error(n({"data", "synthesize", "cfg", "data", "--documents", "9"}), 2, "there is a dataset already",
               "--force");
  expect_error(n({"data", "synthesize", "cgf", "other", "--documents", "9"}), 2, "\"cgf\"", "cfg, khop or arithmetic");
  expect_error(n({"data", "synthesize", "cfg", "other", "--documents", "9", "--set", "dpth=3"}), 2, "\"dpth\"",
               "\"depth\"");
  EXPECT_FALSE(fs::exists(dir_ / "other"));
}

TEST_F(DataCommandTest, AnswersOfASyntheticCorpusAreScored) {
  const std::string text = output({"data", "synthesize", "arithmetic", "data", "--documents", "300",
                                   "--valid-documents", "50", "--all-tokens", "--set", "modulus=5"});
  EXPECT_TRUE(contains(text, "floor of the answers 0.000000 nats per token\n")) << text;
  const Outcome outcome = n(train({"train.steps=2", "data.mask_documents=true"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "answers right ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.err, ", answers right ")) << outcome.err;
  expect_error(n({"data", "synthesize", "cfg", "other", "--documents", "9", "--all-tokens"}), 2, "has no answers",
               "--all-tokens");
}

TEST_F(DataCommandTest, AModelOnTokensOfABpe) {
  output({"tokenizer", "train", "train.txt", "--vocab-size", "270", "--out", "tokenizer.json"});
  output({"prep", "train.txt", "--tokenizer", "tokenizer.json", "--out", "data"});
  output(train({"train.steps=2"}));
  EXPECT_TRUE(contains(read_file(dir_ / "runs/checkpoints/tiny/step_00000002/config.toml"), "vocab_size       = 270"));
  const std::string text = output({"generate", "runs/checkpoints/tiny", "--prompt", "the ", "--max-tokens", "4"});
  EXPECT_TRUE(text.starts_with("the ")) << text;
  EXPECT_GE(text.size(), std::string("the 1234\n").size());
}

// Documents of 5 and 13 tokens with their ends: 16 of them, of which 8 are at most 8 tokens of padding.
TEST_F(DataCommandTest, PlansAndInfoSayHowMuchIsPadding) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += (i % 2 == 0 ? "abc" : "abcdefghijk") + std::string("\n--\n");
  write("talks.txt", text);
  output({"prep", "talks.txt", "--split-on", "--", "--out", "data"});
  // 18 tokens of 32, 128, 256 and 512.
  EXPECT_TRUE(
      contains(output({"data", "info", "data"}),
               "  padding      43.75 % with data.align_documents = 16, 85.94 % with 64, 92.97 % with 128, 96.48 % "
               "with 256\n"));
  const std::vector<std::string> settings = {"--set", "data.mask_documents=true", "--set", "data.align_documents=8"};
  const auto with = [&](std::vector<std::string> command) {
    command.insert(command.end(), settings.begin(), settings.end());
    return command;
  };
  const std::string line =
      "padding: 25.00 % of the tokens, as documents begin at multiples of 8 (data.align_documents)\n";
  EXPECT_TRUE(contains(output(with({"plan", "tiny.toml"})), line));
  EXPECT_TRUE(contains(output(with({"data", "plan", "tiny.toml"})), line));
  EXPECT_FALSE(contains(output({"plan", "tiny.toml"}), "padding"));
  write("mixture.toml", R"(
[sources.talks]
path = "data"
[stages.short]
tokens = 256
weights = { talks = 1 }
[stages.long]
tokens = 256
weights = { talks = 1 }
seq_len = 32
[profiles.all]
scale = 1
)");
  std::vector<std::string> mixed =
      with({"data", "plan", "tiny.toml", "--set", "data.path=", "--set", "data.mixture=mixture.toml", "--set",
            "data.profile=all", "--set", "train.steps=0", "--set", "model.max_positions=32"});
  EXPECT_TRUE(contains(output(mixed), line));
  mixed.insert(mixed.end(),
               {"--set", "data.seq_len=64", "--set", "data.align_documents=64", "--set", "model.max_positions=64"});
  expect_error(n(mixed), 2, "[stages.long] has seq_len = 32, no multiple of data.align_documents = 64",
               "choose a multiple");
}

TEST_F(DataCommandTest, NoCorpus) {
  expect_error(n(train({})), 2, "data.path = \"data\" holds no prepared corpus", "n prep");
  prepare();
  expect_error(n(train({"data.path="})), 2, "data.path is not set", "n prep");
  fs::remove(dir_ / "data/train/manifest.json");
  expect_error(n(train({})), 1, "no dataset in 'data/train': it has no manifest.json", "");
  EXPECT_FALSE(fs::exists(dir_ / "runs"));
}

// Deeper than any stack.
TEST_F(DataCommandTest, JsonWithoutAnEnd) {
  prepare();
  output(train({"train.steps=1"}));
  const std::string deep(100'000, '[');
  write("data/train/manifest.json", deep);
  expect_error(n({"data", "verify", "data"}), 1, "manifest.json", "");
  write("runs/checkpoints/tiny/step_00000001/manifest.json", deep);
  expect_error(n({"checkpoint", "info", "runs/checkpoints/tiny"}), 1, "manifest.json", "");
  make_directories(dir_ / "hf");
  write("hf/config.json", deep);
  expect_error(n({"import", "hf", "imported"}), 1, "config.json", "");
  write("deep.json", deep);
  expect_error(n({"tokenizer", "info", "deep.json"}), 1, "deep.json", "");
}

TEST_F(DataCommandTest, ATruncatedShard) {
  prepare();
  fs::resize_file(shard(), fs::file_size(shard()) - 2);
  expect_error(n(train({})), 1, fs::relative(shard(), dir_).string(), "n prep");
  EXPECT_FALSE(fs::exists(dir_ / "runs"));
}

TEST_F(DataCommandTest, AnIdBeyondTheVocabulary) {
  prepare();
  std::string content = read_file(shard());
  for (size_t i = 128; i < content.size(); i += 2) content[i + 1] = '\x10';
  write_file_atomically(shard(), content);
  expect_error(n(train({})), 1, fs::relative(shard(), dir_).string(), "n prep");
  // The run had begun, and says why it ended.
  EXPECT_TRUE(contains(listed("tiny"), " failed "));
  EXPECT_TRUE(contains(listed("tiny"), ".npy"));
}

TEST_F(DataCommandTest, AVocabularyThatIsTooSmall) {
  prepare();
  expect_error(n(train({"model.vocab_size=100"})), 2, "model.vocab_size = 100, but the corpus's tokenizer has 257 ids",
               "set it to 0");
}

}  // namespace
}  // namespace nmoe
