#include "track/catalogue.h"

#include <gtest/gtest.h>

#include <set>

#include "base/files.h"

namespace nmoe {
namespace {

TEST(CatalogueTest, TagsAreFoundByTheirPattern) {
  const auto pattern = [](std::string_view tag) {
    const TagInfo* info = find_tag(tag);
    return info == nullptr ? "" : info->pattern;
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

TEST(CatalogueTest, EachTagOnce) {
  std::set<std::string_view> patterns;
  for (const TagInfo& tag : tag_catalogue()) {
    EXPECT_TRUE(patterns.insert(tag.pattern).second) << tag.pattern;
    EXPECT_FALSE(tag.meaning.empty()) << tag.pattern;
  }
}

// The page in docs/ is what `n runs tags` prints.
TEST(CatalogueTest, ThePageIsOfThisCatalogue) {
  EXPECT_EQ(tag_reference(), read_file(fs::path(NMOE_SOURCE_DIR) / "docs/metrics.md"));
}

}  // namespace
}  // namespace nmoe
