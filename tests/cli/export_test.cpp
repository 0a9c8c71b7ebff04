// A trained model that leaves for transformers, and what is left when it cannot.
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

class ExportCommandTest : public CliTest {
 protected:
  nlohmann::json json_of(const fs::path& file) const { return nlohmann::json::parse(read_file(dir_ / file)); }

  // What is in the folder beside what the fixture and training put there.
  std::vector<std::string> temporaries() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(".") || contains(name, "tmp")) found.push_back(name);
    }
    return found;
  }
};

TEST_F(ExportCommandTest, TransformersFindsAllItAsksFor) {
  output({"tokenizer", "train", "train.txt", "--vocab-size", "270", "--out", "bpe.json"});
  output({"prep", "train.txt", "--tokenizer", "bpe.json", "--out", "data", "--threads", "1"});
  output(train({"train.steps=4"}));
  write("out.tmp", "a file of the user's");
  output({"export", "runs/checkpoints/tiny", "out"});

  const nlohmann::json generation = json_of("out/generation_config.json");
  EXPECT_EQ(generation["bos_token_id"], 267);
  // Its tokenizer has ChatML's marks, so n chat would talk to it in that form, and others find it as well.
  EXPECT_EQ(generation["eos_token_id"], nlohmann::json({267, 269}));
  EXPECT_TRUE(contains(read_file(dir_ / "out/chat_template.jinja"), "<|im_start|>"));
  EXPECT_EQ(json_of("out/tokenizer_config.json")["chat_template"], read_file(dir_ / "out/chat_template.jinja"));
  EXPECT_EQ(json_of("out/config.json")["eos_token_id"], 267);
  const nlohmann::json first = json_of("out/tokenizer.json")["post_processor"]["single"][0];
  EXPECT_EQ(first["SpecialToken"]["id"], "<|endoftext|>");
  EXPECT_EQ(json_of("out/tokenizer_config.json")["add_bos_token"], true);
  const std::string card = read_file(dir_ / "out/README.md");
  EXPECT_TRUE(contains(card, "# tiny\n")) << card;
  EXPECT_TRUE(contains(card, "4 steps, 512 tokens")) << card;
  EXPECT_TRUE(contains(card, weights("tiny"))) << card;
  EXPECT_EQ(temporaries(), std::vector<std::string>{"out.tmp"});

  // A copy of it writes what the model writes, from the same beginning.
  output({"import", "out", "back"});
  const auto generate = [&](const std::string& checkpoint) {
    return output({"generate", checkpoint, "--prompt", "the", "--max-tokens", "8", "--temperature", "0"});
  };
  EXPECT_EQ(generate("back"), generate("runs/checkpoints/tiny"));
  // Exported again, untrained, it is what was imported.
  output({"export", "back", "again"});
  for (const char* file : {"README.md", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(read_file(dir_ / "again" / file), read_file(dir_ / "out" / file)) << file;
  }
  // Trained further, it keeps the first card beside its own.
  output(train({"train.steps=2", "run.name=further", "model.init.from=back", "optim.schedule.warmup=0"}));
  output({"export", "runs/checkpoints/further", "further"});
  EXPECT_EQ(read_file(dir_ / "further/README.base.md"), card);
  EXPECT_TRUE(contains(read_file(dir_ / "further/README.md"), "trained further"));
}

TEST_F(ExportCommandTest, MaskedDocumentsBeginWithNothing) {
  output({"tokenizer", "train", "train.txt", "--vocab-size", "270", "--out", "bpe.json"});
  output({"prep", "train.txt", "--tokenizer", "bpe.json", "--out", "data", "--threads", "1"});
  output(train({"train.steps=1", "data.mask_documents=true"}));
  output({"export", "runs/checkpoints/tiny", "out"});
  EXPECT_TRUE(json_of("out/tokenizer.json")["post_processor"].is_null());
  EXPECT_EQ(json_of("out/tokenizer_config.json")["add_bos_token"], false);
}

// Rotated pairs lie otherwise in these types than in the models trained here; exported, they say the same of a text.
TEST_F(ExportCommandTest, RotaryLayoutsAreNoObstacle) {
  output({"tokenizer", "train", "train.txt", "--vocab-size", "270", "--out", "bpe.json"});
  output({"prep", "train.txt", "--tokenizer", "bpe.json", "--out", "data", "--threads", "1"});
  const std::vector<std::string> softmax = {"train.steps=6", "model.moe.score=softmax", "model.moe.bias_rate=0",
                                            "model.moe.balance_loss=0.03"};
  const auto bits_per_byte = [&](const std::string& checkpoint) {
    const std::string json =
        output({"eval", checkpoint, "--text", "valid.txt", "--context", "16", "--threads", "1", "--json"});
    return nlohmann::json::parse(json).at("tasks").at(0).at("bits_per_byte").get<double>();
  };
  const auto expect_same = [&](const std::string& type, std::vector<std::string> settings) {
    settings.insert(settings.end(), softmax.begin(), softmax.end());
    settings.push_back("run.name=" + type);
    output(train(settings));
    EXPECT_TRUE(contains(output({"export", "runs/checkpoints/" + type, type}), "as " + type));
    output({"import", type, type + "-back"});
    EXPECT_NEAR(bits_per_byte(type + "-back"), bits_per_byte("runs/checkpoints/" + type), 1e-5) << type;
  };
  expect_same("deepseek_v2", {"model.rope.layout=half_split", "model.moe.normalise_weights=false"});

  std::string toml(test::kTinyToml);
  const size_t mla = toml.find("[model.mla]");
  toml.replace(mla, toml.find("[model.moe]") - mla, "[model.gqa]\nnum_kv_heads = 1\nhead_dim = 8\nqk_norm = true\n");
  write("tiny.toml", toml);
  const std::string gqa = "model.attention=gqa";
  const std::string interleaved = "model.rope.layout=interleaved", no_norm = "model.gqa.qk_norm=false";
  expect_same("qwen3_moe", {gqa, interleaved, "model.moe.num_shared_experts=0"});
  expect_same("qwen2_moe", {gqa, interleaved, no_norm, "model.gqa.bias=qkv", "model.moe.shared_gate=true",
                            "model.moe.shared_dim=12"});

  // What does stand in the way is named in one go.
  output(train({"train.steps=1", gqa, "model.activation=relu_squared", "run.name=own"}));
  const Outcome refused = n({"export", "runs/checkpoints/own", "own"});
  for (const char* key : {"num_shared_experts = 1", "score = \"sigmoid\"", "bias_rate = 0.005"}) {
    expect_error(refused, 2, std::string("model.moe.") + key + ": qwen3_moe has", "n config --template mla-moe");
  }
  EXPECT_FALSE(fs::exists(dir_ / "own"));
}

TEST_F(ExportCommandTest, AnInterruptedExportLeavesNothing) {
  prepare();
  // Some 80 MB, whose writing takes longer than it takes to send a signal.
  output(train({"train.steps=1", "model.moe.num_experts=1024", "model.moe.expert_dim=384", "train.batch_seqs=4"}));
  for (const int signal : {SIGINT, SIGTERM}) {
    test::Program program(dir_, {NMOE_PROGRAM, "export", "runs/checkpoints/tiny", "out", "--threads", "1"});
    while (temporaries().empty() && !fs::exists(dir_ / "out"))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    program.send(signal);
    expect_error(program.wait(), 1, signal == SIGINT ? "stopped by SIGINT" : "stopped by SIGTERM", "again");
    EXPECT_EQ(temporaries(), std::vector<std::string>{});
    EXPECT_FALSE(fs::exists(dir_ / "out"));
  }
  // What cannot be caught leaves its folder, until the next export there ends.
  test::Program program(dir_, {NMOE_PROGRAM, "export", "runs/checkpoints/tiny", "out", "--threads", "1"});
  while (temporaries().empty() && !fs::exists(dir_ / "out")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  program.send(SIGKILL);
  EXPECT_EQ(program.wait().exit_code, 128 + SIGKILL);
  EXPECT_EQ(temporaries().size(), 1u);
  output({"export", "runs/checkpoints/tiny", "out"});
  EXPECT_EQ(temporaries(), std::vector<std::string>{});
}

}  // namespace
}  // namespace nmoe
