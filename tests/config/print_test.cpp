#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "config/load.h"
#include "configs.h"

namespace nmoe {
namespace {

TEST(Print, ReadsBackAsTheSame) {
  for (const Config& config : all_kinds_of_configs()) {
    const std::string text = print_config(config);
    const Config again = parse_config(text, "printed.toml");
    EXPECT_EQ(values_of(again), values_of(config)) << text;
    EXPECT_EQ(print_config(again), text);
  }
}

TEST(Print, KeepsHardValues) {
  Config config;
  config.run.experiment = "quotes \" and \\, tabs\t, lines\n, umlauts ü, $NMOE_X";
  config.data.path = "C:\\\\x y#z";
  config.train.memory_limit = "1.5 GiB";
  config.run.seed = std::numeric_limits<int64_t>::max();
  config.optim.matrices.lr = 0.1 + 0.2;  // needs all 17 digits
  config.optim.adamw.eps = 5e-324;       // the least double
  config.optim.rest.lr = 123456789012345680.0;
  const Config again = parse_config(print_config(config), "printed.toml");
  EXPECT_EQ(values_of(again), values_of(config));
}

TEST(Print, LeavesOutWhatHasNoEffect) {
  const std::string text = print_config(dense_gqa_config());
  EXPECT_EQ(text.find("[model.mla]"), std::string::npos);
  EXPECT_EQ(text.find("[optim.muon]"), std::string::npos);
  EXPECT_EQ(text.find("top_k"), std::string::npos);
  EXPECT_NE(text.find("[model.gqa]"), std::string::npos);
}

TEST(Print, AlignsValuesAndMeanings) {
  Config config;
  config.data.path = "a/folder/with/a/name/longer/than/the/column";
  const std::string text = print_config(config);
  EXPECT_NE(text.find("\n[model.mla]\n"
                      "q_lora_rank      = 0      # rank of latent queries; 0: queries are projected directly\n"
                      "kv_lora_rank     = 64     # rank of latent keys and values\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\nseq_len        = 256                       # tokens per sequence\n"), std::string::npos)
      << text;
}

TEST(Print, LinesFitAScreen) {
  for (const Config& config : all_kinds_of_configs()) {
    std::istringstream lines(print_config(config));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  }
}

}  // namespace
}  // namespace nmoe
