// The configurations that come with nmoe.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"
#include "config/load.h"
#include "config/mixture.h"
#include "model/spec/cost.h"
#include "train/plan/run_plan.h"

namespace nmoe {
namespace {

fs::path configs() { return fs::path(NMOE_SOURCE_DIR) / "configs"; }

struct Size {
  double parameters;         // all that are trained
  double active_parameters;  // those a token uses
};

// As the models' authors give them, embedding and head counted: Moonlight-16B-A3B 15.29 B and 2.24 B without those
// 2 x 0.336 B (arXiv 2502.16982, table 2); DeepSeek-V2-Lite 15.7 B and 2.4 B, of which one table counts as active
// (arXiv 2405.04434, appendix B); DeepSeek-V3 671 B and 37 B, again with one (arXiv 2412.19437, section 4.2);
// Qwen3-30B-A3B 30.5 B and 3.3 B (its model card). The others are counted by hand: ultra has 4,096 x 12 experts of
// 3 x 768 x 384, mini 32 x 8 of 3 x 512 x 384; hybrid is mini with 6 x (512 x 2,576 + 1,024 x 512) in place of as many
// 4 x 512 x 512.
std::map<std::string, Size> published_sizes() {
  return {
      {"mini.toml", {0.2158e9, 0.0836e9}},
      {"hybrid.toml", {0.2206e9, 0.0884e9}},
      {"super.toml", {2.84e9, 0.193e9}},
      {"ultra.toml", {43.64e9, 0.228e9}},
      {"moonlet.toml", {7.19e9, 1.67e9}},
      {"moonlight.toml", {15.29e9 + 0.671e9, 2.24e9 + 0.671e9}},
      {"dsv2-lite.toml", {15.7e9, 2.4e9 + 0.210e9}},
      {"dsv3.toml", {671e9, 37e9 + 0.927e9}},
      {"qwen3-30b-a3b.toml", {30.5e9, 3.3e9}},
  };
}

// All but eval/, which has tasks.
std::vector<fs::path> toml_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(configs())) {
    const fs::path& path = entry.path();
    if (path.extension() == ".toml" && path.parent_path().filename() != "eval") files.push_back(path);
  }
  std::ranges::sort(files);
  return files;
}

TEST(ConfigsTest, EveryOneLoads) {
  int num_mixtures = 0;
  for (const fs::path& file : toml_files()) {
    SCOPED_TRACE(file.string());
    if (file.stem() == "mixture") {
      EXPECT_FALSE(load_mixture(file).stages.empty());
      ++num_mixtures;
      continue;
    }
    Config config = load_config(file);  // validates
    if (config.model.vocab_size == 0) config.model.vocab_size = 1000;
    const ModelCost cost = model_cost(config.model);
    EXPECT_GT(cost.active_parameters, 0);
    EXPECT_LE(cost.active_parameters, cost.parameters);
    check_schedule(config);
  }
  EXPECT_EQ(num_mixtures, 1);
}

TEST(ConfigsTest, SpeedrunModelsHaveTheirPublishedSizes) {
  size_t num_found = 0;
  for (const auto& [name, published] : published_sizes()) {
    SCOPED_TRACE(name);
    const ModelCost cost = model_cost(load_config(configs() / "speedrun" / name).model);
    // Authors round: 2.4 B may be 2.45 B.
    EXPECT_NEAR(static_cast<double>(cost.parameters), published.parameters, 5e-3 * published.parameters);
    EXPECT_NEAR(static_cast<double>(cost.active_parameters), published.active_parameters,
                2.5e-2 * published.active_parameters);
    ++num_found;
  }
  const auto files = toml_files();
  EXPECT_EQ(num_found, static_cast<size_t>(std::ranges::count_if(
                           files, [](const fs::path& file) { return file.parent_path().filename() == "speedrun"; })));
}

}  // namespace
}  // namespace nmoe
