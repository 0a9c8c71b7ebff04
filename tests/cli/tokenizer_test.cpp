// Tokenizers of other programs as a user meets them.
#include <algorithm>
#include <sstream>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

class TokenizerCommandTest : public CliTest {
 protected:
  TokenizerCommandTest() {
    output({"tokenizer", "train", "train.txt", "--vocab-size", "270", "--out", "bpe/tokenizer.json"});
  }
};

TEST_F(TokenizerCommandTest, SpecialTokensAreTextUnlessAllowed) {
  const std::string text = "<|endoftext|>";
  const std::string as_text = output({"tokenizer", "encode", "bpe"}, text);
  EXPECT_EQ(output({"tokenizer", "decode", "bpe"}, as_text), text);
  EXPECT_EQ(output({"tokenizer", "encode", "bpe", "--allow-special", "<|endoftext|>"}, text), "267\n");
  EXPECT_EQ(output({"tokenizer", "encode", "bytes", "--allow-special", "all"}, text), "256\n");
  expect_error(n({"tokenizer", "encode", "bpe", "--allow-special", "<|no|>"}, text), 2, "no such special token",
               "n tokenizer info");
}

TEST_F(TokenizerCommandTest, InfoSaysWhatATokenizerIs) {
  const std::string info = output({"tokenizer", "info", "bpe"});
  for (const char* line : {"kind        bpe\n", "pattern     llama3\n", "vocabulary  270 ids\n", "end of doc  267\n",
                           "special     267 <|endoftext|>\n"}) {
    EXPECT_TRUE(contains(info, line)) << info;
  }
  EXPECT_TRUE(contains(output({"tokenizer", "info", "bytes"}), "vocabulary  257 ids\n"));
}

// Whoever trains on it can have it chat later: markers cannot be added to a trained model.
TEST_F(TokenizerCommandTest, ChatMlIsReservedUnlessToldOtherwise) {
  const auto specials = [&](std::vector<std::string> options) {
    std::vector<std::string> arguments = {"tokenizer", "train", "train.txt", "--vocab-size", "270", "-o", "other.json"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const std::string said = output(arguments);
    std::string listed;
    std::istringstream info(output({"tokenizer", "info", "other.json"}));
    for (std::string line; std::getline(info, line);) {
      if (line.starts_with("special ")) listed += line.substr(12) + "\n";
    }
    EXPECT_TRUE(contains(said, "special tokens among them: <|endoftext|>"));
    return listed;
  };
  const std::string chatml = "268 <|im_start|>\n269 <|im_end|>\n";
  EXPECT_EQ(specials({}), "267 <|endoftext|>\n" + chatml);
  // Named by those who know, it is the same.
  const std::string hash = output({"tokenizer", "info", "other.json"});
  EXPECT_EQ(specials({"--special", "<|im_start|>", "--special", "<|im_end|>"}), "267 <|endoftext|>\n" + chatml);
  EXPECT_EQ(output({"tokenizer", "info", "other.json"}), hash);
  EXPECT_EQ(specials({"--special", "<think>"}), "266 <|endoftext|>\n267 <|im_start|>\n268 <|im_end|>\n269 <think>\n");
  EXPECT_EQ(specials({"--no-chatml"}), "269 <|endoftext|>\n");
  EXPECT_EQ(specials({"--no-chatml", "--special", "<|user|>"}), "268 <|endoftext|>\n269 <|user|>\n");
  expect_error(n({"tokenizer", "train", "train.txt", "--vocab-size", "258", "-o", "other.json"}), 2,
               "a vocabulary of 258 ids", "choose 259 (256 bytes and the special tokens <|endoftext|>, <|im_start|>, ");
}

// Text, tokenizer, corpus, training, and no further option: the model answers in ChatML's form.
TEST_F(TokenizerCommandTest, AModelTrainedOnItCanChat) {
  output({"prep", "train.txt", "--tokenizer", "bpe", "--out", "data", "--threads", "1"});
  output(train({"train.steps=2", "data.seq_len=64"}));
  EXPECT_EQ(n({"chat", "runs/checkpoints/tiny", "--max-tokens", "4"}, "hello\n/exit\n").exit_code, 0);
}

TEST_F(TokenizerCommandTest, LearnsTheTextOfJsonLines) {
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += fmt::format("{{\"content\": \"some text of {}\"}}\n", i);
  write("a.jsonl", lines);
  expect_error(n({"tokenizer", "train", "a.jsonl", "--vocab-size", "266", "--out", "json.json"}), 1,
               "'a.jsonl', line 1: no field \"text\"", "the object has \"content\": see --text-field");
  output({"tokenizer", "train", "a.jsonl", "--text-field", "content", "--vocab-size", "268", "--out", "json.json"});
  // The text is learned, and not the field's name, which is in every line too.
  EXPECT_EQ(output({"tokenizer", "encode", "json.json"}, "some").find(' '), std::string::npos);
  const std::string name = output({"tokenizer", "encode", "json.json"}, "content");
  EXPECT_EQ(std::ranges::count(name, ' '), 6) << name;
}

TEST_F(TokenizerCommandTest, BenchCountsBytesAndTokens) {
  const std::string json = output({"bench", "tokenizer", "bytes", "train.txt", "--threads", "1", "--json"});
  EXPECT_TRUE(contains(json, fmt::format("{{\"bytes\": {}, \"documents\": 1, \"bytes_per_token\": 1.0000, \"results\": "
                                         "[{{\"threads\": 1, \"mb_per_s\": ",
                                         fs::file_size(dir_ / "train.txt"))))
      << json;
  EXPECT_TRUE(
      contains(output({"bench", "tokenizer", "bpe", "--threads", "2"}, test::tiny_text(6000, 3)), " 2 threads  "));
  expect_error(n({"bench", "tokenizer", "bpe"}, ""), 2, "no text", "not empty");
}

TEST_F(TokenizerCommandTest, RankFilesNeedAnEncoding) {
  write("mine.tiktoken", "YQ== 0\n");
  expect_error(n({"tokenizer", "info", "mine.tiktoken"}), 2, "known by its SHA-256", "NAME:mine.tiktoken");
  expect_error(n({"tokenizer", "info", "gpt2:mine.tiktoken"}), 1, "byte 0 has no token", "complete");
}

}  // namespace
}  // namespace nmoe
