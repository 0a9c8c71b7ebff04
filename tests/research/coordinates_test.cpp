#include "research/coordinates.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/errors.h"
#include "support/temp_dir.h"
#include "support/tiny_corpus.h"

namespace nmoe::test {
namespace {

class CoordinatesTest : public TempDirTest {};

// Powers that are put in come out; what is not at the configuration's own depth counts for depth alone.
TEST(CoordinateSlopes, AreExponents) {
  std::vector<CoordinateModel> models;
  for (const auto& [width, depth] : {std::pair{1.0, 1.0}, {2.0, 1.0}, {4.0, 1.0}, {1.0, 3.0}}) {
    models.push_back({.width = width, .depth = depth});
    models.back().coordinates = {
        {.what = "a", .size = 3 * std::sqrt(width) / depth, .change = 0.2 / width * depth * depth},
        {.what = "still", .size = 1.0, .change = 0.0}};
  }
  const std::vector<CoordinateSlopes> slopes = coordinate_slopes(models);
  ASSERT_EQ(slopes.size(), 2u);
  EXPECT_NEAR(slopes[0].size_by_width, 0.5, 1e-12);
  EXPECT_NEAR(slopes[0].change_by_width, -1.0, 1e-12);
  EXPECT_NEAR(slopes[0].size_by_depth, -1.0, 1e-12);
  EXPECT_NEAR(slopes[0].change_by_depth, 2.0, 1e-12);
  EXPECT_NEAR(slopes[1].size_by_width, 0.0, 1e-12);
  EXPECT_TRUE(std::isnan(slopes[1].change_by_width));
}

TEST_F(CoordinatesTest, ResizingKeepsHeadsExpertsAndTheBase) {
  const Config config = tiny_config(dir_, {"model.scaling.rule=mup", "model.scaling.base.moe.expert_dim=8"});
  const Config wide = resized(config, 4, 2);
  EXPECT_EQ(wide.model.dim, 64);
  EXPECT_EQ(wide.model.num_layers, 4);
  EXPECT_EQ(wide.model.num_dense_layers, 2);
  EXPECT_EQ(wide.model.num_heads, 8);
  EXPECT_EQ(wide.model.mla.kv_lora_rank, 32);
  EXPECT_EQ(wide.model.mla.v_head_dim, config.model.mla.v_head_dim);
  EXPECT_EQ(wide.model.moe.expert_dim, 64);
  EXPECT_EQ(wide.model.moe.num_experts, config.model.moe.num_experts);
  EXPECT_EQ(wide.model.scaling.base.sizes.at("dim"), 16);
  EXPECT_EQ(wide.model.scaling.base.sizes.at("num_layers"), 2);
  EXPECT_EQ(wide.model.scaling.base.sizes.at("moe.expert_dim"), 8);  // the one that it had
  EXPECT_FALSE(wide.model.scaling.base.sizes.contains("gqa.num_kv_heads"));
  EXPECT_TRUE(contains(error_of([&] { resized(config, 0.3, 1); }).what(), "times 0.3 is no whole number"));
  const Config pattern = tiny_config(dir_, {});
  Config by_pattern = pattern;
  by_pattern.model.layers = "mla/moe";
  EXPECT_TRUE(contains(error_of([&] { resized(by_pattern, 2, 1); }).what(), "model.layers"));
}

// Without a rule, what AdamW's steps change in logits grows about as the width does; with one it does not.
TEST_F(CoordinatesTest, ARuleKeepsChangesFlat) {
  write_tiny_corpus(dir_ / "data");
  const auto growth = [&](const std::string& rule) {
    const Config config =
        tiny_config(dir_, {"model.scaling.rule=" + rule, "optim.matrices.optimizer=adamw",
                           "optim.experts.optimizer=adamw", "optim.matrices.lr=4e-3", "optim.experts.lr=4e-3",
                           "optim.router.lr=4e-3", "optim.rest.lr=4e-3", "model.init.std=0.1"});
    const auto slopes =
        coordinate_slopes(check_coordinates(config, {.widths = {1, 2, 4, 8}, .depths = {1}, .steps = 4, .seqs = 8}));
    for (const CoordinateSlopes& slope : slopes) {
      if (slope.what == "logits") return slope.change_by_width;
    }
    return std::nan("");
  };
  EXPECT_GT(growth("none"), 0.5);
  EXPECT_NEAR(growth("mup"), 0.0, 0.35);
}

}  // namespace
}  // namespace nmoe::test
