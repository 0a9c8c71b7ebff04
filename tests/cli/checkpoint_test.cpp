// Damaged checkpoints as a user meets them.
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

TEST_F(CheckpointCommandTest, NoneAtAll) {
  expect_error(n({"generate", "nowhere"}), 1, "no checkpoint at 'nowhere'", "step_");
  expect_error(n({"checkpoint", "info", "data"}), 1, "no checkpoint in 'data'", "step_");
}

}  // namespace
}  // namespace nmoe
