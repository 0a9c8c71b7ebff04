// What an import would say, from config.json alone, and the configuration that it has.
#include <nlohmann/json.hpp>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

class ImportCommandTest : public CliTest {
 protected:
  // A folder with nothing but this model's config.json, and what is changed in it.
  void write_config_json(const std::string& fixture, const nlohmann::json& changes = {}) const {
    nlohmann::json json =
        nlohmann::json::parse(read_file(fs::path(NMOE_SOURCE_DIR) / "tests/fixtures/hf" / fixture / "config.json"));
    if (!changes.is_null()) json.merge_patch(changes);
    fs::create_directories(dir_ / "hf");
    write("hf/config.json", json.dump());
  }
};

TEST_F(ImportCommandTest, ADryRunTellsFromConfigJsonAlone) {
  write_config_json("glm4_mtp");
  const std::string told = output({"import", "--dry-run", "hf"});
  EXPECT_TRUE(contains(told, "glm4_moe model of ")) << told;
  EXPECT_TRUE(contains(told, "nmoe has all that its config.json asks for")) << told;
  EXPECT_TRUE(contains(told, "multi-token-prediction layers, 1, would be carried along untrained")) << told;
  expect_error(n({"import", "hf"}), 2, "out is required", "n import --help");
  expect_error(n({"import", "--dry-run", "hf", "out"}), 2, "excludes", "n import --help");
}

TEST_F(ImportCommandTest, ADryRunNamesAllThatIsMissing) {
  write_config_json("mixtral", {{"sliding_window", 4096}, {"hidden_act", "gelu"}, {"new_key", 1}});
  const Outcome refused = n({"import", "--dry-run", "hf"});
  for (const char* what :
       {"3 things are not supported", "hidden_act = \"gelu\"", "sliding_window = 4096", "new_key = 1"}) {
    expect_error(refused, 1, what, "docs/huggingface.md");
  }
  // The import itself says the same.
  expect_error(n({"import", "hf", "imported"}), 1, "3 things are not supported", "docs/huggingface.md");
}

TEST_F(ImportCommandTest, ItsConfigurationIsOneToRead) {
  write_config_json("glm4_groups");
  const std::string toml = output({"config", "--from", "hf"});
  for (const char* line :
       {"rotary_dim   = 8 ", "bias         = \"qkv\"", "qk_norm      = true", "num_groups         = 2 "}) {
    EXPECT_TRUE(contains(toml, line)) << toml;
  }
  write("model.toml", toml);
  EXPECT_TRUE(contains(output({"config", "model.toml"}), toml));
  expect_error(n({"config", "--from", "hf", "model.toml"}), 2, "excludes", "n config --help");
  expect_error(n({"config", "--from", "none"}), 1, "none/config.json", "");
}

}  // namespace
}  // namespace nmoe
