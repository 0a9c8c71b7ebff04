// Damaged checkpoints as a user meets them.
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "cli/cli_test.h"

namespace nmoe {
namespace {

class CheckpointCommandTest : public CliTest {
 protected:
  CheckpointCommandTest() {
    prepare();
    output(train({"train.steps=3", "checkpoint.every=1"}));
  }

  // Replaces the last byte of the file, which is the last tensor's.
  void alter(const std::string& file) const {
    std::string content = read_file(last() / file);
    content.back() = static_cast<char>(content.back() ^ 1);
    write_file_atomically(last() / file, content);
  }
  fs::path last() const { return dir_ / folder_ / "step_00000003"; }

  const std::string folder_ = "runs/checkpoints/tiny";
};

TEST_F(CheckpointCommandTest, AnAlteredTensor) {
  alter("model.safetensors");
  const std::string good = folder_ + "/step_00000002";
  expect_error(n({"generate", folder_}), 1, "step_00000003/model.safetensors': tensor '", good);
  expect_error(n({"checkpoint", "verify", folder_}), 1, "was altered: its hash differs", "another checkpoint");
  expect_error(n(resume({"train.steps=4"})), 1, "was altered", good);
  // The one that is offered works.
  EXPECT_TRUE(contains(output({"checkpoint", "verify", good}), "is whole"));
  output({"generate", good, "--max-tokens", "3"});
  fs::remove_all(last());
  output(resume({"train.steps=3"}));
}

TEST_F(CheckpointCommandTest, OptimizerStateIsForTrainingAlone) {
  alter("optimizer.safetensors");
  output({"generate", folder_, "--max-tokens", "3"});
  expect_error(n({"checkpoint", "verify", folder_}), 1, "optimizer.safetensors", "");
  expect_error(n(resume({"train.steps=4"})), 1, "optimizer.safetensors", "step_00000002");
}

TEST_F(CheckpointCommandTest, ATruncatedFile) {
  fs::resize_file(last() / "model.safetensors", 1000);
  expect_error(n({"generate", folder_}), 1, "1000 bytes, written with", "step_00000002");
  expect_error(n({"checkpoint", "info", folder_}), 1, "1000 bytes", "step_00000002");
  fs::remove(last() / "manifest.json");
  expect_error(n({"generate", folder_}), 1, "manifest.json", "step_00000002");
}

// Its hashes are right, since whoever wrote it made them; a configuration that nothing can be done with is told.
TEST_F(CheckpointCommandTest, AConfigurationThatIsNone) {
  const auto verify_with = [&](const std::string& toml, const std::string& what) {
    const nlohmann::json before = nlohmann::json::parse(read_file(last() / "manifest.json"));
    nlohmann::json manifest = before;
    for (nlohmann::json& file : manifest["files"]) {
      if (file["name"] != "config.toml") continue;
      file["sha256"] = sha256_hex(toml);
      file["bytes"] = toml.size();
    }
    manifest.erase("manifest_sha256");
    manifest["manifest_sha256"] = sha256_hex(manifest.dump());
    write_file_atomically(last() / "manifest.json", manifest.dump());
    write_file_atomically(last() / "config.toml", toml);
    expect_error(n({"checkpoint", "verify", folder_}), 1, what, "another checkpoint");
    expect_error(n({"generate", folder_}), 2, "config.toml:1:", "");
  };
  std::string deep = "a";
  for (int i = 0; i < 30'000; ++i) deep += ".a";
  verify_with(deep + " = 1\n", "config.toml:1: tables and lists are more than 32 levels deep");
  verify_with("[" + deep + "]\n", "levels deep");
  verify_with("no toml", "config.toml:1:");
  verify_with("model.unknown = 1", "unknown key model.unknown");
}

// The F32 tensors of a safetensors file, by name.
std::map<std::string, std::vector<float>> tensors_of(const fs::path& path) {
  const std::string bytes = read_file(path);
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, header_size));
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    EXPECT_EQ(entry["dtype"], "F32") << name;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    std::vector<float>& values = tensors[name];
    values.resize((end - begin) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + 8 + header_size + begin, end - begin);
  }
  return tensors;
}

TEST_F(CheckpointCommandTest, MergesAreTheMeansOfWeights) {
  const auto step = [&](int number) { return fmt::format("{}/step_{:08}", folder_, number); };
  const std::string said =
      output({"checkpoint", "merge", step(1), step(2), folder_, "-o", "linear", "--weights", "linear"});
  EXPECT_TRUE(contains(said, fmt::format("0.500000 of {}\n", step(3))));  // the folder's latest
  output({"checkpoint", "merge", step(3), step(1), "-o", "uniform"});
  std::vector<std::map<std::string, std::vector<float>>> steps;
  for (int i = 1; i <= 3; ++i) steps.push_back(tensors_of(dir_ / step(i) / "model.safetensors"));
  const auto linear = tensors_of(dir_ / "linear/step_00000003/model.safetensors"),
             uniform = tensors_of(dir_ / "uniform/step_00000003/model.safetensors");
  EXPECT_EQ(linear.size(), steps[0].size());
  for (const auto& [name, values] : steps[0]) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double a = values[i], b = steps[1].at(name)[i], c = steps[2].at(name)[i];
      ASSERT_EQ(linear.at(name)[i], static_cast<float>((a + 2 * b + 3 * c) / 6)) << name << " " << i;
      ASSERT_EQ(uniform.at(name)[i], static_cast<float>((c + a) / 2)) << name << " " << i;
    }
  }
  EXPECT_TRUE(contains(output({"checkpoint", "verify", "linear"}), "is whole"));
  EXPECT_TRUE(tensors_of(dir_ / "linear/step_00000003/optimizer.safetensors").empty());
  output({"generate", "linear", "--max-tokens", "3"});
  output({"export", "linear", "exported"});
  // Of two of the same step, what is no weight is of the second.
  output(train({"run.name=second", "train.steps=3"}));
  output({"checkpoint", "merge", folder_, "runs/checkpoints/second", "-o", "both"});
  EXPECT_TRUE(contains(read_file(dir_ / "both/step_00000003/config.toml"), "\"second\""));
  output({"checkpoint", "merge", "runs/checkpoints/second", folder_, "-o", "back"});
  EXPECT_TRUE(contains(read_file(dir_ / "back/step_00000003/config.toml"), "\"tiny\""));
  // Of equal ones: the same bits.
  output({"checkpoint", "merge", step(2), step(2), step(2), "-o", "same", "--weights", "linear"});
  EXPECT_EQ(info("same", "weights"), info(step(2), "weights"));
  // Another run begins with them.
  output(train({"run.name=further", "model.init.from=linear", "train.steps=1"}));
}

TEST_F(CheckpointCommandTest, MergesOfWhatDoesNotGoTogether) {
  output(train({"run.name=narrow", "train.steps=1", "model.dense_dim=8"}));
  const std::string narrow = "runs/checkpoints/narrow";
  expect_error(n({"checkpoint", "merge", folder_, narrow, "-o", "merged"}), 2, "model.dense_dim: 32 != 8", "one model");
  expect_error(n({"checkpoint", "merge", folder_, "-o", "merged"}), 2, "checkpoint: At least 2 required", "--help");
  expect_error(n({"checkpoint", "merge", folder_, folder_, "-o", folder_ + "/step_00000002"}), 2,
               "step_00000002' is a checkpoint", "folder that the merged one is to be in");
  alter("model.safetensors");
  expect_error(n({"checkpoint", "merge", folder_, folder_, "-o", "merged"}), 1, "was altered", "step_00000002");
  EXPECT_FALSE(fs::exists(dir_ / "merged"));
  const std::string one = folder_ + "/step_00000001";
  output({"checkpoint", "merge", one, one, "-o", "merged"});
  expect_error(n({"checkpoint", "merge", one, one, "-o", "merged"}), 2, "holds the checkpoint step_00000001 already",
               "another folder");
}

TEST_F(CheckpointCommandTest, NoneAtAll) {
  expect_error(n({"generate", "nowhere"}), 1, "no checkpoint at 'nowhere'", "step_");
  expect_error(n({"checkpoint", "info", "data"}), 1, "no checkpoint in 'data'", "step_");
}

}  // namespace
}  // namespace nmoe
