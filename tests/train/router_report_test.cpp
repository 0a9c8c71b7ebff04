#include "train/router_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/errors.h"

namespace nmoe {
namespace {

using test::contains;
using Report = std::map<std::string, double, std::less<>>;

Report report_of(const std::vector<RouterHealth>& layers) {
  Report report;
  report_routers(layers, [&](std::string_view tag, double value) {
    EXPECT_TRUE(report.emplace(tag, value).second) << tag << " is reported twice";
  });
  return report;
}

// Layer 0: loads 6, 2, 0, 0 have mean 2 and variance (16 + 0 + 4 + 4) / 4 = 6.
// Layer 1: loads 2, 2, 2, 2.
std::vector<RouterHealth> two_layers() {
  return {{.counts = {6, 2, 0, 0}, .balance_loss = 0.25, .z_loss = 0.5, .entropy = 0.75, .bias_range = 0.125},
          {.counts = {2, 2, 2, 2}, .entropy = 1.25, .bias_range = 0.5}};
}

TEST(RouterReportTest, NumbersByHand) {
  const double cv = 100.0 * std::sqrt(6.0) / 2.0;
  const Report expected = {
      {"router/layer_00/max_load", 75.0},
      {"router/layer_00/load_max_over_mean", 3.0},
      {"router/layer_00/cv", cv},
      {"router/layer_00/entropy", 0.75},
      {"router/layer_00/experts_active", 2.0},
      {"router/layer_00/bias_range", 0.125},
      {"router/layer_00/balance_loss", 0.25},
      {"router/layer_00/z_loss", 0.5},
      {"router/layer_01/max_load", 25.0},
      {"router/layer_01/load_max_over_mean", 1.0},
      {"router/layer_01/cv", 0.0},
      {"router/layer_01/entropy", 1.25},
      {"router/layer_01/experts_active", 4.0},
      {"router/layer_01/bias_range", 0.5},
      {"router/layer_01/balance_loss", 0.0},
      {"router/layer_01/z_loss", 0.0},
      {"router_agg/mean_cv", cv / 2},
      {"router_agg/std_cv", cv / 2},
      {"router_agg/mean_entropy", 1.0},
      {"router_agg/min_entropy", 0.75},
      {"router_agg/dead_experts_count", 2.0},
      {"router_agg/experts_active_mean", 3.0},
  };
  const Report report = report_of(two_layers());
  EXPECT_EQ(report.size(), expected.size());
  for (const auto& [tag, value] : expected) {
    ASSERT_TRUE(report.contains(tag)) << tag;
    EXPECT_LE(std::abs(report.at(tag) - value), 1e-12 * std::max(1.0, value)) << tag;
  }
}

TEST(RouterReportTest, ADenseModelReportsNothing) {
  EXPECT_TRUE(report_of({}).empty());
  EXPECT_EQ(find_collapse({}, {.num_experts = 0}), "");
}

// 16 experts, top 2: exactly two experts that share everything have a cv of 100 sqrt(14 / 2), 97 %
// of which is 256.6. At most three experts may be active.
TEST(RouterReportTest, CollapseByHand) {
  const MoeConfig moe = {.num_experts = 16, .top_k = 2};
  const auto collapse_of = [&](std::vector<int32_t> counts) {
    counts.resize(16);
    const std::vector<RouterHealth> layers = {{.counts = std::vector<int32_t>(16, 40)}, {.counts = counts}};
    return find_collapse(layers, moe);
  };
  const std::string collapse = collapse_of({320, 320});
  EXPECT_TRUE(contains(collapse, "MoE layer 1"));
  EXPECT_TRUE(contains(collapse, "2 of 16 experts"));
  EXPECT_TRUE(contains(collapse, "265 %"));

  EXPECT_NE(collapse_of({320, 310, 10}), "");      // cv 260.0
  EXPECT_EQ(collapse_of({320, 300, 20}), "");      // cv 255.6
  EXPECT_EQ(collapse_of({320, 318, 1, 1}), "");    // cv 263.6, but four are active
  EXPECT_NE(collapse_of({0, 0, 0, 7, 0, 7}), "");  // wherever they are
  EXPECT_EQ(collapse_of({}), "");                  // no tokens at all
  EXPECT_NE(find_collapse(std::vector<RouterHealth>{{.counts = {9, 9, 0, 0}}}, {.num_experts = 4, .top_k = 2}), "");
}

// Two of three experts at two choices a token: no more than an unlucky step.
TEST(RouterReportTest, TooFewExpertsCannotCollapse) {
  EXPECT_EQ(find_collapse(std::vector<RouterHealth>{{.counts = {8, 8, 0}}}, {.num_experts = 3, .top_k = 2}), "");
}

}  // namespace
}  // namespace nmoe
