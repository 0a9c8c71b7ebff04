#include "track/catalogue.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/files.h"
#include "track/tag.h"
#include "track/tags/evaluation.h"
#include "track/tags/exchange.h"
#include "track/tags/gpu.h"
#include "track/tags/losses.h"
#include "track/tags/router.h"
#include "track/tags/training.h"

namespace nmoe {
namespace {

TEST(CatalogueTest, TagsAreFoundByTheirPattern) {
  const auto pattern = [](std::string_view tag) {
    const Metric* metric = find_tag(tag);
    return metric == nullptr ? "" : metric->tag;
  };
  EXPECT_EQ(pattern("train/loss"), "train/loss");
  EXPECT_EQ(pattern("router/layer_03/cv"), "router/layer_LL/cv");
  EXPECT_EQ(pattern("router/layer_103/cv"), "router/layer_LL/cv");
  EXPECT_EQ(pattern("exchange/layer_03/rank_12/sent_bytes"), "exchange/layer_LL/rank_RR/sent_bytes");
  EXPECT_EQ(pattern("valid/loss"), "valid/loss");
  EXPECT_EQ(pattern("valid/code/python/loss"), "valid/SOURCE/loss");
  EXPECT_EQ(pattern("eval/core/piqa/acc"), "eval/TASK/acc");
  EXPECT_EQ(pattern("eval/humaneval/pass_at_10"), "eval/TASK/pass_at_NN");
  EXPECT_EQ(pattern("eval/CORE"), "eval/SUITE");
  EXPECT_EQ(pattern("eval/CORE_v2"), "eval/SUITE_v2");
  EXPECT_EQ(pattern("eval/seconds"), "eval/seconds");
  for (const char* unknown :
       {"", "train", "train/loss2", "train/los", "router/layer_3/cv", "router/layer_/cv", "eval/core/piqa"}) {
    EXPECT_EQ(find_tag(unknown), nullptr) << unknown;
  }
}

TEST(CatalogueTest, TagsAreMadeOfPatternsAndTakenApart) {
  EXPECT_EQ(tag_of(tags::kRouterCv, {3}), "router/layer_03/cv");
  EXPECT_EQ(tag_of(tags::kRouterCv, {103}), "router/layer_103/cv");
  EXPECT_EQ(tag_of(tags::kExchangeSentBytes, {3, 12}), "exchange/layer_03/rank_12/sent_bytes");
  EXPECT_EQ(tag_of(tags::kEvalTaskPassAt, {"core/piqa", "8"}), "eval/core/piqa/pass_at_8");
  EXPECT_EQ(tag_of(tags::kMfu, {}), "efficiency/mfu");
  EXPECT_THROW(tag_of(tags::kRouterCv, {}), CheckFailure);
  EXPECT_THROW(tag_of(tags::kMfu, {1}), CheckFailure);

  using Parts = std::vector<std::string_view>;
  EXPECT_EQ(parts_of(tags::kExchangeSentBytes, "exchange/layer_03/rank_12/sent_bytes"), (Parts{"03", "12"}));
  EXPECT_EQ(parts_of(tags::kEvalTaskPassAt, "eval/core/piqa/pass_at_8"), (Parts{"core/piqa", "8"}));
  EXPECT_EQ(parts_of(tags::kMfu, "efficiency/mfu"), Parts());
  EXPECT_EQ(parts_of(tags::kRouterCv, "router/layer_03/load"), std::nullopt);
  EXPECT_EQ(number_of(tags::kRouterLoad, "router/layer_103/load"), 103);
  EXPECT_EQ(number_of(tags::kRouterLoad, "router/layer_3/load"), std::nullopt);
  EXPECT_EQ(name_of(tags::kGpuPowerW), "power_w");
}

// A loss of an objective is a metric, so that viewers know it.
TEST(CatalogueTest, EveryObjectiveHasItsLoss) {
  for (const Objective* objective : kObjectives) EXPECT_EQ(find_tag(objective->metric.tag), &objective->metric);
}

TEST(CatalogueTest, EachTagOnce) {
  std::set<std::string_view> patterns;
  for (const Metric* metric : tag_catalogue()) {
    EXPECT_TRUE(patterns.insert(metric->tag).second) << metric->tag;
    EXPECT_FALSE(metric->meaning.empty()) << metric->tag;
  }
}

// The page in docs/ is what `n runs tags` prints.
TEST(CatalogueTest, ThePageIsOfThisCatalogue) {
  EXPECT_EQ(tag_reference(), read_file(fs::path(NMOE_SOURCE_DIR) / "docs/metrics.md"));
}

}  // namespace
}  // namespace nmoe
