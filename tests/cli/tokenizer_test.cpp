// Tokenizers of other programs as a user meets them.
#include <algorithm>
#include <nlohmann/json.hpp>
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

// What data for a model is prepared with, whatever is to end its documents.
TEST_F(CliTest, ACheckpointNamesItsTokenizer) {
  output({"tokenizer", "train", "train.txt", "--vocab-size", "300", "-o", "tokenizer.json"});
  output({"prep", "train.txt", "--tokenizer", "tokenizer.json", "--out", "data"});
  output(train({"train.steps=1"}));
  const std::string folder = "runs/checkpoints/tiny", checkpoint = folder + "/step_00000001";
  for (const std::string end : {"", "@<|im_end|>"}) {
    const std::string expected = output({"tokenizer", "info", "tokenizer.json" + end});
    EXPECT_EQ(output({"tokenizer", "info", folder + end}), expected);
    EXPECT_EQ(output({"tokenizer", "info", checkpoint + end}), expected);
  }
  EXPECT_NE(output({"tokenizer", "info", folder}), output({"tokenizer", "info", folder + "@<|im_end|>"}));
  output({"prep", "train.txt", "--tokenizer", folder + "@<|im_end|>", "--out", "chats"});
  output(train({"run.name=next", "train.steps=1", "data.path=chats", "model.init.from=" + folder}));
}

// A chat model's config.json names the end of a turn before the end of a text, as Qwen3's does.
TEST_F(CliTest, AnImportEndsDocumentsAsAPreparationDoes) {
  output({"tokenizer", "train", "train.txt", "--vocab-size", "300", "-o", "tokenizer.json"});
  output({"prep", "train.txt", "--tokenizer", "tokenizer.json", "--out", "data"});
  output(train({"train.steps=1"}));
  output({"export", "runs/checkpoints/tiny", "hf"});
  const auto told = [&](const std::string& source) { return output({"tokenizer", "info", source}); };
  const auto id_of = [&](const std::string& token) {
    const std::string text = told("hf");
    const size_t end = text.find(" " + token + "\n"), begin = text.rfind(' ', end - 1);
    return text.substr(begin + 1, end - begin - 1);
  };
  const std::string text_end = id_of("<|endoftext|>"), turn_end = id_of("<|im_end|>");
  nlohmann::json config = nlohmann::json::parse(read_file(dir_ / "hf/config.json"));
  config["eos_token_id"] = {std::stoi(turn_end), std::stoi(text_end)};
  write("hf/config.json", config.dump());

  output({"import", "hf", "imported"});
  EXPECT_EQ(told("imported"), told("hf"));
  EXPECT_TRUE(contains(told("imported"), "end of doc  " + text_end));
  output({"import", "hf", "turns", "--end-of-document", "<|im_end|>"});
  EXPECT_TRUE(contains(told("turns"), "end of doc  " + turn_end));
  expect_error(n({"import", "hf", "none", "--end-of-document", "<|no|>"}), 2, "no special token '<|no|>'", "name one");

  // What is prepared with the folder trains the import, and the other import too: the end is the data's.
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines += R"({"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "the cat"}]})"
             "\n";
  }
  write("chats.jsonl", lines);
  output({"prep", "chats.jsonl", "--messages-field", "messages", "--tokenizer", "hf", "--out", "chats"});
  for (const char* start : {"imported", "turns"}) {
    write("next.toml", fmt::format("[run]\nname = \"next_{0}\"\nthreads = 1\n[model.init]\nfrom = \"{0}\"\n"
                                   "[data]\npath = \"chats\"\nseq_len = 16\nmask_documents = true\n"
                                   "[train]\nsteps = 1\nbatch_seqs = 4\nmicrobatch_seqs = 4\n",
                                   start));
    output({"train", "next.toml"});
    EXPECT_TRUE(contains(told(fmt::format("runs/checkpoints/next_{}", start)), "end of doc  " + text_end));
  }
}

}  // namespace
}  // namespace nmoe
