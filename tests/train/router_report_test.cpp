#include "train/report/router_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "model/experts_exchange.h"
#include "support/errors.h"
#include "train/report/exchange_report.h"

namespace nmoe {
namespace {

using test::contains;
using Report = std::map<std::string, double, std::less<>>;

Report report_of(const std::vector<RouterHealth>& layers) {
  Report report;
  MetricRecord record;
  report_routers(layers, record);
  for (const auto& [tag, value] : record.scalars) {
    EXPECT_TRUE(report.emplace(tag, value).second) << tag << " is reported twice";
  }
  return report;
}

// Of the model, layer 1: loads 6, 2, 0, 0 have mean 2 and variance (16 + 0 + 4 + 4) / 4 = 6.
// Layer 5: loads 2, 2, 2, 2.
std::vector<RouterHealth> two_layers() {
  return {{.layer = 1,
           .counts = {6, 2, 0, 0},
           .balance_loss = 0.25,
           .z_loss = 0.5,
           .entropy = 0.75,
           .bias = {0.5, 0.375, 0.5, 0.4375}},
          {.layer = 5, .counts = {2, 2, 2, 2}, .entropy = 1.25, .bias = {0, 0.5, 0, 0}}};
}

TEST(RouterReportTest, NumbersByHand) {
  const double cv = 100.0 * std::sqrt(6.0) / 2.0;
  const Report expected = {
      {"router/layer_01/max_load", 75.0},
      {"router/layer_01/load_max_over_mean", 3.0},
      {"router/layer_01/cv", cv},
      {"router/layer_01/entropy", 0.75},
      {"router/layer_01/experts_active", 2.0},
      {"router/layer_01/bias_range", 0.125},
      {"router/layer_01/balance_loss", 0.25},
      {"router/layer_01/z_loss", 0.5},
      {"router/layer_05/max_load", 25.0},
      {"router/layer_05/load_max_over_mean", 1.0},
      {"router/layer_05/cv", 0.0},
      {"router/layer_05/entropy", 1.25},
      {"router/layer_05/experts_active", 4.0},
      {"router/layer_05/bias_range", 0.5},
      {"router/layer_05/balance_loss", 0.0},
      {"router/layer_05/z_loss", 0.0},
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

// Two ranks, rows of 4 values and 2 experts a token. 10 tokens go from rank 0 to 1, with 15 copies; 6 the other
// way, 8.
TEST(ExchangeReportTest, NumbersByHand) {
  Config config;
  config.model.dim = 4;
  config.model.moe.num_experts = 8;
  config.model.moe.top_k = 2;
  const std::vector<ExchangeCost> costs = exchange_costs(config, DType::kBF16, 2);
  const std::vector<LayerTraffic> layers = {{.layer = 3,
                                             .ranks = {{.rows = 10,
                                                        .sent = 10,
                                                        .sent_copies = 15,
                                                        .received = 6,
                                                        .received_copies = 8,
                                                        .waited_ms = {1, 2, 3, 4},
                                                        .lasted_ms = {2, 3, 4, 7},
                                                        .exposed_ms = {1, 1, 1, 1}},
                                                       {.rows = 30,
                                                        .sent = 6,
                                                        .sent_copies = 8,
                                                        .received = 10,
                                                        .received_copies = 15,
                                                        .waited_ms = {0, 0, 0, 5},
                                                        .lasted_ms = {1, 1, 1, 5},
                                                        .exposed_ms = {1, 1, 1, 5}}}}};
  Report report;
  MetricRecord record;
  report_exchange(layers, costs, record);
  for (const auto& [tag, value] : record.scalars) {
    EXPECT_TRUE(report.emplace(tag, value).second) << tag << " is reported twice";
  }
  const double row = 8, choices = 2 * (4 + 4), weights = 2 * 4;
  const double first = 10 * (2 * row + choices) + 6 * (2 * row + weights),
               second = 6 * (2 * row + choices) + 10 * (2 * row + weights);
  const Report expected = {
      {"exchange/layer_03/rank_load_max_over_mean", 1.5},
      {"exchange/layer_03/rank_00/sent_bytes", first},
      {"exchange/layer_03/rank_00/wait_dispatch_ms", 1.0},
      {"exchange/layer_03/rank_00/wait_combine_ms", 2.0},
      {"exchange/layer_03/rank_00/wait_combine_backward_ms", 3.0},
      {"exchange/layer_03/rank_00/wait_dispatch_backward_ms", 4.0},
      {"exchange/layer_03/rank_00/transfer_ms", 16.0},
      {"exchange/layer_03/rank_00/hidden_share", 0.75},
      {"exchange/layer_03/rank_01/sent_bytes", second},
      {"exchange/layer_03/rank_01/wait_dispatch_ms", 0.0},
      {"exchange/layer_03/rank_01/wait_combine_ms", 0.0},
      {"exchange/layer_03/rank_01/wait_combine_backward_ms", 0.0},
      {"exchange/layer_03/rank_01/wait_dispatch_backward_ms", 5.0},
      {"exchange/layer_03/rank_01/transfer_ms", 8.0},
      {"exchange/layer_03/rank_01/hidden_share", 0.0},
      {"exchange_agg/rank_load_max_over_mean", 1.5},
      {"exchange_agg/sent_bytes", (first + second) / 2},
      {"exchange_agg/wait_ms", 7.5},
      {"exchange_agg/wait_max_ms", 10.0},
      {"exchange_agg/transfer_ms", 12.0},
      {"exchange_agg/hidden_share", 0.5},
  };
  EXPECT_EQ(report, expected);
}

Config moe_config(int64_t num_experts, int64_t top_k) {
  Config config;
  config.model.moe.num_experts = num_experts;
  config.model.moe.top_k = top_k;
  config.model.moe.bias_rate = 0.002;
  config.model.moe.balance_loss = 0.003;
  config.optim.router.lr = 0.004;
  return config;
}

// One layer in balance and one whose first expert has `over_mean` times the mean, a multiple of a half; the others
// share the rest equally.
std::vector<RouterHealth> layers_with(double over_mean, int32_t num_experts = 64) {
  const int32_t mean = 2 * (num_experts - 1);
  std::vector<RouterHealth> layers(2);
  layers[0].layer = 3;
  layers[1].layer = 4;
  layers[0].counts.assign(static_cast<size_t>(num_experts), mean);
  layers[1].counts.assign(static_cast<size_t>(num_experts), static_cast<int32_t>(2 * (num_experts - over_mean)));
  layers[1].counts[0] = static_cast<int32_t>(over_mean * mean);
  return layers;
}

TEST(RouterReportTest, TheFullestExpertAndItsLayer) {
  const FullestExpert fullest = fullest_expert(two_layers());
  EXPECT_EQ(fullest.layer, 1);
  EXPECT_DOUBLE_EQ(fullest.over_mean, 3.0);
  EXPECT_EQ(fullest_expert(layers_with(8.0)).layer, 4);
  EXPECT_EQ(fullest_expert({}).over_mean, 0.0);
  EXPECT_EQ(fullest_expert(std::vector<RouterHealth>{{.counts = {0, 0}}}).over_mean, 0.0);
}

TEST(BalanceWatchTest, NamesLayerLoadAndKeys) {
  BalanceWatch watch(moe_config(64, 4));
  EXPECT_EQ(watch.observe(280, layers_with(8.0)), "");
  EXPECT_EQ(watch.observe(290, layers_with(8.0)), "");
  const std::string said = watch.observe(300, layers_with(8.0));
  EXPECT_TRUE(contains(said, "step 300: the router of layer 4 is far from balance")) << said;
  EXPECT_TRUE(contains(said, "8.0 times the mean, 50 % of all tokens")) << said;
  EXPECT_TRUE(contains(said, "raise model.moe.bias_rate (0.002) or lower optim.router.lr (0.004)")) << said;
}

TEST(BalanceWatchTest, WithoutBiasTheLossIsTheKey) {
  Config config = moe_config(64, 4);
  config.model.moe.bias_rate = 0.0;
  BalanceWatch watch(config);
  for (const int64_t step : {300, 310}) watch.observe(step, layers_with(8.0));
  const std::string said = watch.observe(320, layers_with(8.0));
  EXPECT_TRUE(contains(said, "raise model.moe.balance_loss (0.003) or")) << said;
  EXPECT_FALSE(contains(said, "bias_rate"));
}

TEST(BalanceWatchTest, IsSilentEarlyInBalanceAndAfterASingleStep) {
  BalanceWatch watch(moe_config(64, 4));
  for (int64_t step = 10; step < BalanceWatch::kFirstStep; step += 10) {
    EXPECT_EQ(watch.observe(step, layers_with(16.0)), "") << step;
  }
  EXPECT_NE(watch.observe(BalanceWatch::kFirstStep, layers_with(16.0)), "");

  BalanceWatch recovering(moe_config(64, 4));
  for (int64_t step = 200; step < 600; step += 10) {
    EXPECT_EQ(recovering.observe(step, layers_with(step % 30 == 0 ? 3.5 : 8.0)), "") << step;
  }
}

TEST(BalanceWatchTest, SpeaksAgainAfterTwiceAsManySteps) {
  BalanceWatch watch(moe_config(64, 4));
  std::vector<int64_t> said;
  for (int64_t step = 10; step <= 2000; step += 10) {
    if (!watch.observe(step, layers_with(8.0)).empty()) said.push_back(step);
  }
  EXPECT_EQ(said, (std::vector<int64_t>{200, 400, 800, 1600}));
}

// 16 experts, top 4: every token on one expert is 4 times the mean.
TEST(BalanceWatchTest, FewExpertsHaveALowerLimit) {
  const auto says = [](const std::vector<RouterHealth>& layers) {
    BalanceWatch watch(moe_config(16, 4));
    std::string said;
    for (const int64_t step : {300, 310, 320}) said = watch.observe(step, layers);
    return said;
  };
  EXPECT_NE(says(layers_with(3.5, 16)), "");
  EXPECT_EQ(says(layers_with(2.5, 16)), "");
  // Ten rows an expert: such a load is chance.
  std::vector<RouterHealth> few(1);
  few[0].counts.assign(16, 8);
  few[0].counts[0] = 40;
  EXPECT_EQ(says(few), "");
}

// 16 experts, top 2: exactly two experts that share everything have a cv of 100 sqrt(14 / 2), 97 %
// of which is 256.6. At most three experts may be active.
TEST(RouterReportTest, CollapseByHand) {
  const MoeConfig moe = {.num_experts = 16, .top_k = 2};
  const auto collapse_of = [&](std::vector<int32_t> counts) {
    counts.resize(16);
    const std::vector<RouterHealth> layers = {{.counts = std::vector<int32_t>(16, 40)}, {.layer = 7, .counts = counts}};
    return find_collapse(layers, moe);
  };
  const std::string collapse = collapse_of({320, 320});
  EXPECT_TRUE(contains(collapse, "router of layer 7 has"));
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
