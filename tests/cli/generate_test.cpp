// Writing text, and timing it.
#include <nlohmann/json.hpp>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

class GenerateCommandTest : public CliTest {
 protected:
  GenerateCommandTest() {
    prepare();
    output(train({"train.steps=12"}));
  }
  // What a generation prints beside the line's end.
  std::string generate(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"generate", "runs/checkpoints/tiny", "--max-tokens", "40", "--context", "64"});
    std::string text = output(std::move(arguments));
    EXPECT_TRUE(text.ends_with("\n"));
    text.pop_back();
    return text;
  }
};

TEST_F(GenerateCommandTest, SeveralPromptsGetWhatEachGetsAlone) {
  const std::string first = generate({"--prompt", "the cat ", "--seed", "3"}),
                    second = generate({"--prompt", "a", "--seed", "3"});
  EXPECT_TRUE(first.starts_with("the cat "));
  EXPECT_GT(first.size(), 30u);
  EXPECT_EQ(generate({"--prompt", "the cat ", "--prompt", "a", "--seed", "3"}),
            "--- 1\n" + first + "\n--- 2\n" + second);
  // One after the other, in a cache that has room for one of them.
  EXPECT_EQ(generate({"--prompt", "the cat ", "--prompt", "a", "--seed", "3", "--cache-positions", "64"}),
            "--- 1\n" + first + "\n--- 2\n" + second);
}

TEST_F(GenerateCommandTest, GuessesChangeNoText) {
  for (const char* temperature : {"0", "0.9"}) {
    const std::vector<std::string> prompt = {"--prompt", "the cat sat. the cat", "--temperature", temperature};
    const std::string plain = generate(prompt);
    for (const char* tokens : {"1", "9", "auto"}) {
      std::vector<std::string> guessing = prompt;
      guessing.insert(guessing.end(), {"--draft", "ngram", "--draft-tokens", tokens});
      EXPECT_EQ(generate(guessing), plain) << tokens;
    }
  }
  const std::vector<std::string> command = {"generate", "runs/checkpoints/tiny"};
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.begin(), command.begin(), command.end());
    return n(options);
  };
  expect_error(with({"--draft", "ngrams"}), 2, "--draft", "n generate --help");
  expect_error(with({"--draft", "ngram", "--draft-tokens", "17"}), 2, "--draft-tokens", "n generate --help");
  expect_error(with({"--draft-tokens", "3"}), 2, "--draft-tokens requires --draft", "n generate --help");
  expect_error(with({"--draft", "none", "--draft-tokens", "3"}), 2, "nothing drafts", "leave out --draft-tokens");
}

TEST_F(GenerateCommandTest, GuessesOfModelsChangeNoText) {
  output(train({"run.name=module", "model.mtp.depth=1", "train.steps=3"}));
  const auto generated = [&](const std::string& draft, const char* temperature) {
    return output({"generate", "runs/checkpoints/module", "--prompt", "the cat", "--max-tokens", "40", "--context",
                   "64", "--seed", "3", "--temperature", temperature, "--draft", draft});
  };
  for (const char* temperature : {"0", "0.9"}) {
    const std::string plain = generated("none", temperature);
    EXPECT_EQ(generated("mtp", temperature), plain) << temperature;
    EXPECT_EQ(generated("runs/checkpoints/tiny", temperature), plain) << temperature;
  }
  expect_error(n({"generate", "runs/checkpoints/tiny", "--prompt", "a", "--draft", "mtp"}), 2,
               "the model has no module of multi-token prediction", "depth = 1");
}

TEST_F(GenerateCommandTest, SpeculationIsMeasured) {
  const auto bench = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"bench", "speculate", "runs/checkpoints/tiny", "--tokens", "16", "--runs", "1",
                                     "--limit", "1", "--threads", "1"});
    return options;
  };
  const auto json = nlohmann::json::parse(output(bench({"--draft", "ngram", "--draft-tokens", "3", "--json"})));
  EXPECT_EQ(json.at("draft"), "ngram");
  EXPECT_EQ(json.at("draft_tokens"), "3");
  EXPECT_EQ(json.at("same_tokens"), true);
  EXPECT_EQ(json.at("max_tokens"), 16);
  EXPECT_TRUE(json.contains("commit"));
  const auto& all = json.at("cases").at(0);
  EXPECT_EQ(all.at("name"), "qualitative");
  EXPECT_EQ(all.at("is_text"), true);
  EXPECT_EQ(all.at("prompts"), 11);
  EXPECT_EQ(all.at("categories").size(), 11u);
  EXPECT_GE(all.at("acceptance_length"), 1.0);
  EXPECT_GT(all.at("gain"), 0.0);
  EXPECT_GT(all.at("plain").at("output_tokens_per_s"), 0.0);
  EXPECT_GT(all.at("drafted").at("user_tokens_per_s"), 0.0);

  const std::string table = output(bench({"--draft", "runs/checkpoints/tiny", "--draft-tokens", "2", "--prompts",
                                          "throughput", "--input-tokens", "8", "--batches", "1,2"}));
  for (const char* text : {"low ", "mixed ", "high ", "random tokens*", "no text", "acceptance length", "gain"}) {
    EXPECT_TRUE(contains(table, text)) << table;
  }
  expect_error(n(bench({"--draft", "none"})), 2, "nothing drafts", "--draft ngram");
  expect_error(n(bench({"--prompts", "missing.jsonl"})), 2, "missing.jsonl", "qualitative");
  expect_error(n(bench({"--draft", "mtp"})), 2, "no module of multi-token prediction", "depth = 1");
  expect_error(n(bench({"--set", "run.seed=2"})), 2, "--set with a checkpoint", ".toml");
}

TEST_F(GenerateCommandTest, APromptIsReadFromAPipe) {
  const std::string expected = generate({"--prompt", "the cat ", "--seed", "3"});
  const std::vector<std::string> command = {
      "generate", "runs/checkpoints/tiny", "--max-tokens", "40", "--context", "64", "--seed", "3"};
  const auto with = [&](const std::vector<std::string>& prompts) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), prompts.begin(), prompts.end());
    return arguments;
  };
  EXPECT_EQ(output(command, "the cat "), expected + "\n");
  EXPECT_EQ(output(command, "the cat \n"), expected + "\n");  // as echo ends it
  EXPECT_EQ(output(with({"--prompt", "-"}), "the cat \r\n"), expected + "\n");
  EXPECT_TRUE(output(with({"--prompt", "a", "--prompt", "-"}), "the cat ").ends_with("--- 2\n" + expected + "\n"));
  EXPECT_EQ(output(with({"--prompt", "the cat "}), "a dog "), expected + "\n");
  EXPECT_EQ(output(command), output(with({"--prompt", ""})));  // nothing in the pipe
  expect_error(n(with({"--prompt", "-", "--prompt", "-"}), "a"), 2, "--prompt - twice", "as text");
}

TEST_F(GenerateCommandTest, OptionsOfSampling) {
  const std::string greedy = generate({"--prompt", "the ", "--temperature", "0"});
  EXPECT_EQ(generate({"--prompt", "the ", "--top-k", "1", "--seed", "9"}), greedy);
  EXPECT_EQ(generate({"--prompt", "the ", "--top-p", "0", "--seed", "9"}), greedy);
  EXPECT_EQ(generate({"--prompt", "the ", "--min-p", "1", "--seed", "9"}), greedy);
  const std::string varied = generate({"--prompt", "the ", "--temperature", "0", "--repetition-penalty", "1e9"});
  EXPECT_NE(varied, greedy);
  const char stop = greedy[10];
  EXPECT_EQ(generate({"--prompt", "the ", "--temperature", "0", "--stop", "never", "--stop", std::string(1, stop)}),
            greedy.substr(0, greedy.find(stop, 4)));
  expect_error(n({"generate", "runs/checkpoints/tiny", "--repetition-penalty", "0"}), 2, "repetition_penalty is 0",
               "above 0");
}

// --arithmetic takes the place of what the checkpoint says; it makes no difference but in the last bits.
TEST_F(GenerateCommandTest, ThereAreTwoArithmeticsWithMla) {
  output(train({"run.name=other", "train.steps=12", "generation.arithmetic=training"}));
  const auto loss_of = [&](const std::string& run, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"eval", "runs/checkpoints/" + run, "--text", "valid.txt", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string report = output(arguments);
    const size_t begin = report.find("\"nats_per_token\"");
    return report.substr(begin, report.find(',', begin) - begin);
  };
  const std::string latent = loss_of("tiny", {}), training = loss_of("other", {});
  EXPECT_NE(latent, training);
  EXPECT_EQ(loss_of("other", {"--arithmetic", "latent"}), latent);
  EXPECT_EQ(loss_of("tiny", {"--arithmetic", "training"}), training);
  EXPECT_EQ(generate({"--prompt", "a", "--temperature", "0", "--arithmetic", "training"}),
            generate({"--prompt", "a", "--temperature", "0"}));
}

TEST_F(GenerateCommandTest, OtherModelsHaveOneArithmetic) {
  write("gqa.toml", R"([run]
name = "gqa"
[model]
dim = 16
num_layers = 1
num_heads = 2
dense_dim = 32
attention = "gqa"
gqa.num_kv_heads = 1
gqa.head_dim = 8
moe.num_experts = 0
[data]
path = "data"
seq_len = 16
[train]
batch_seqs = 8
steps = 1
)");
  output({"train", "gqa.toml"});
  const std::string checkpoint = "runs/checkpoints/gqa";
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"generate", checkpoint, "--prompt", "a"},
                                             {"chat", checkpoint, "--chat-template", "chat.jinja"},
                                             {"serve", checkpoint, "--port", "0"},
                                             {"eval", checkpoint, "--text", "valid.txt"}}) {
    SCOPED_TRACE(command[0]);
    write("chat.jinja", "{%- for message in messages %}{{ message.content }}{%- endfor %}");
    auto with = command;
    with.insert(with.end(), {"--arithmetic", "training"});
    expect_error(n(with), 2, "no layer has mla", "leave --arithmetic out");
    with.back() = "other";
    expect_error(n(with), 2, "--arithmetic", command[0]);
  }
}

TEST_F(GenerateCommandTest, TheContextIsALimit) {
  // data.seq_len = 16: an eos_id, four bytes of prompt, and twelve more.
  const std::vector<std::string> arguments = {"generate", "runs/checkpoints/tiny", "--prompt",
                                              "the ",     "--temperature",         "0"};
  EXPECT_EQ(output(arguments).size(), 4u + 12u + 1u);
  expect_error(n({"generate", "runs/checkpoints/tiny", "--prompt", std::string(20, 'a')}), 2,
               "the prompt has 21 tokens, the context 16", "--context");
  expect_error(n({"generate", "runs/checkpoints/tiny", "--context", "2000000000"}), 2, "generation needs ",
               "the context (now 2000000000 tokens)");
  expect_error(n({"generate", "runs/checkpoints/tiny", "--context", "3000000000"}), 2, "a context of 3000000000 tokens",
               "2147483647");
}

TEST_F(GenerateCommandTest, BenchOfACheckpointOrAConfiguration) {
  const std::string json = output({"bench", "decode", "runs/checkpoints/tiny", "--tokens", "20", "--json"});
  for (const char* key : {"{\"device\": \"CPU", "\"sequences\": 16, \"context\": 20, \"prompt_tokens_per_s\": ",
                          "\"tokens\": 20, ", "\"text_ratio\": ", "\"last_token_ratio\": "}) {
    EXPECT_TRUE(contains(json, key));
  }
  EXPECT_TRUE(contains(output({"bench", "decode", "tiny.toml", "--tokens", "8", "--threads", "1"}), "text of 8 "));
  const std::string batches = output({"bench", "decode", "tiny.toml", "--tokens", "8", "--batches", "2,3", "--json"});
  for (const char* sequences : {"\"sequences\": 2,", "\"sequences\": 3,"}) EXPECT_TRUE(contains(batches, sequences));
  EXPECT_FALSE(contains(batches, "\"sequences\": 16,"));
  // 5 to 8 tokens.
  EXPECT_TRUE(contains(output({"bench", "decode", "tiny.toml", "--prompts", "4", "--prompt-tokens", "5:8"}),
                       "4 prompts, 26 tokens: "));
  EXPECT_TRUE(contains(output({"bench", "decode", "tiny.toml", "--prompts", "2", "--prompt-tokens", "3:4", "--json"}),
                       "\"prompts\": 2, \"prompt_tokens\": 7, \"prompt_tokens_per_s\": "));
  for (const char* range : {"8", "8:4", "0:4", "4:8:9", "4:"}) {
    expect_error(n({"bench", "decode", "tiny.toml", "--prompts", "2", "--prompt-tokens", range}), 2, range, "256:4096");
  }
  expect_error(n({"bench", "decode", "tiny.toml", "--prompt-tokens", "4:8"}), 2, "--prompts", "");
  expect_error(n({"bench", "decode", "tiny.toml", "--set", "data.path=nowhere"}), 2,
               "data.path = \"nowhere\": there is no such folder", "--set model.vocab_size=N");
  expect_error(n({"bench", "decode", "tiny.toml", "--set", "data.path=nowhere", "--set", "model.vocab_size=100"}), 2,
               "model.vocab_size = 100, but there are 256 bytes", "raise it to 257");
  expect_error(n({"bench", "decode", "runs/checkpoints/tiny", "--set", "model.dim=8"}), 2, "--set with a checkpoint",
               ".toml");
}

}  // namespace
}  // namespace nmoe
