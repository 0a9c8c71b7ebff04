#include "data/stream/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "data/test_data.h"

namespace nmoe {
namespace {

// Windows of 10 tokens: 1,000, 100 and 10 of them.
const std::vector<SourceFacts> kSources = {{"web", 10'001, "w"}, {"code", 1'001, "c"}, {"math", 101, "m"}};

Mixture mixture_of(std::vector<std::vector<double>> stage_weights, double max_epochs, int64_t stage_tokens = 1000) {
  Mixture mixture;
  for (const SourceFacts& facts : kSources) mixture.sources.push_back({facts.name, facts.name, max_epochs});
  for (auto& weights : stage_weights) {
    mixture.stages.push_back({fmt::format("s{}", mixture.stages.size()), stage_tokens, std::move(weights)});
  }
  return mixture;
}

std::vector<int64_t> quotas(const Mixture& mixture, int64_t tokens, size_t stage = 0) {
  return make_stream_plan(mixture, kSources, 10, tokens, 0).stages[stage].quotas;
}

TEST(Plan, SharesFollowWeights) {
  EXPECT_EQ(quotas(mixture_of({{8, 1, 1}}, 0), 1000), (std::vector<int64_t>{80, 10, 10}));
  EXPECT_EQ(quotas(mixture_of({{0.5, 0.5, 0}}, 0), 1000), (std::vector<int64_t>{50, 50, 0}));
  // 10 sequences in thirds: the largest remainder, then the first.
  EXPECT_EQ(quotas(mixture_of({{1, 1, 1}}, 0), 100), (std::vector<int64_t>{4, 3, 3}));
  EXPECT_EQ(quotas(mixture_of({{0, 1, 1}}, 0), 19), (std::vector<int64_t>{0, 1, 0}));  // 1.9 sequences are one
}

TEST(Plan, TemperatureFlattensShares) {
  Mixture mixture = mixture_of({{16, 4, 1}}, 0);
  mixture.temperature = 2;  // square roots: 4, 2, 1
  EXPECT_EQ(quotas(mixture, 7000), (std::vector<int64_t>{400, 200, 100}));
  mixture.temperature = 0.5;  // squares: 256, 16, 1
  EXPECT_EQ(quotas(mixture, 2730), (std::vector<int64_t>{256, 16, 1}));
  mixture.temperature = 1e9;
  EXPECT_EQ(quotas(mixture, 3000), (std::vector<int64_t>{100, 100, 100}));
  mixture.temperature = 1e-9;
  EXPECT_EQ(quotas(mixture, 3000), (std::vector<int64_t>{300, 0, 0}));
}

TEST(Plan, CountsAsWeightsAndLowTemperatures) {
  Mixture mixture = mixture_of({{4e9, 4e9, 2e9}}, 0);
  mixture.temperature = 0.01;  // 4e9^100 is beyond a double
  EXPECT_EQ(quotas(mixture, 1000), (std::vector<int64_t>{50, 50, 0}));
  mixture = mixture_of({{0.3, 0.3, 0.1}}, 1);
  mixture.temperature = 1e-4;  // 0.3^10000 is below one
  EXPECT_EQ(quotas(mixture, 2000), (std::vector<int64_t>{100, 100, 0}));
  // Sources of a vanishing share still fill what the others cannot.
  EXPECT_EQ(quotas(mixture, 11090), (std::vector<int64_t>{1000, 100, 9}));
}

// 1e12 * (30 / 3e12) is less than 10 in floating point.
TEST(Plan, BudgetsAreWholeNumbers) {
  for (const int64_t stage_tokens : {1'000'000'000'000, 7'000'000'007, 59'000'000'000}) {
    const Mixture mixture = mixture_of({{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, 0, stage_tokens);
    for (const int64_t sequences : {1, 7, 49, 1000, 123'457}) {
      for (const PlannedStage& stage : make_stream_plan(mixture, kSources, 10, 30 * sequences, 0).stages) {
        ASSERT_EQ(stage.num_sequences, sequences) << stage_tokens;
      }
    }
  }
}

TEST(Plan, CappedSourcesGiveTheirRestToTheOthers) {
  const Mixture mixture = mixture_of({{1, 1, 1}, {1, 1, 1}}, 2);  // at most 2000, 200 and 20 sequences in all
  const StreamPlan plan = make_stream_plan(mixture, kSources, 10, 2 * 3000, 0);
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].quotas, (std::vector<int64_t>{140, 140, 20}));
  EXPECT_EQ(plan.stages[0].capped, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(plan.stages[1].quotas, (std::vector<int64_t>{240, 60, 0}));  // what the first stage left
  EXPECT_EQ(plan.stages[1].capped, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(plan.num_sequences(), 600);
  const std::string table = print_stream_plan(plan);  // also of a source that gives nothing more
  EXPECT_NE(table.find("s1           math                        0            0   0.00 %    2.000  exhausted"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("s1           code"), std::string::npos) << table;
  EXPECT_NE(table.find("2.000  exhausted: its max_epochs is reached"), std::string::npos) << table;
}

TEST(Plan, ExhaustedSourcesAreAnErrorBeforeTraining) {
  const Mixture mixture = mixture_of({{1, 0, 0}, {0, 1, 1}}, 1, 1200);
  expect_error(ErrorKind::kUsage,
               "stage s1 lacks 100 tokens: its sources are exhausted, code (1001 tokens, max_epochs 1)",
               [&] { make_stream_plan(mixture, kSources, 10, 2400, 0); });
  expect_error(ErrorKind::kUsage, "source math has 101 tokens; one sequence and its look-ahead need 201",
               [&] { make_stream_plan(mixture, kSources, 200, 2400, 0); });
  expect_error(ErrorKind::kUsage, "too many sequences of 10",
               [&] { make_stream_plan(mixture, kSources, 10, std::numeric_limits<int64_t>::max(), 0); });
  expect_error(ErrorKind::kUsage, "stage s0 has 5 tokens under this profile: no sequences of 10",
               [&] { make_stream_plan(mixture, kSources, 10, 10, 0); });
}

// Random mixtures: whole budgets are met, caps are kept, and uncapped shares are right to one sequence.
TEST(Plan, Invariants) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> weight(0.01, 5.0);
  for (int trial = 0; trial < 300; ++trial) {
    Mixture mixture =
        mixture_of({{weight(random), weight(random), weight(random)}, {weight(random), weight(random), 0}},
                   trial % 2 == 0 ? 0 : 3);
    mixture.temperature = weight(random);
    const StreamPlan plan = make_stream_plan(mixture, kSources, 10, 2 * (500 + trial * 10), 0);
    std::vector<int64_t> taken(3, 0);
    for (size_t s = 0; s < 2; ++s) {
      const PlannedStage& stage = plan.stages[s];
      EXPECT_EQ(std::accumulate(stage.quotas.begin(), stage.quotas.end(), int64_t{0}), stage.num_sequences);
      double free_weight = 0;
      int64_t free_sequences = 0;
      const auto p = [&](size_t i) { return std::pow(mixture.stages[s].weights[i], 1 / mixture.temperature); };
      for (size_t i = 0; i < 3; ++i) {
        taken[i] += stage.quotas[i];
        EXPECT_TRUE(trial % 2 == 0 || taken[i] <= 3 * plan.sources[i].num_windows(10));
        EXPECT_EQ(stage.first[i] + stage.quotas[i], taken[i]);
        if (stage.capped[i] || mixture.stages[s].weights[i] == 0) continue;
        free_weight += p(i);
        free_sequences += stage.quotas[i];
      }
      for (size_t i = 0; i < 3; ++i) {
        if (stage.capped[i] || mixture.stages[s].weights[i] == 0) continue;
        EXPECT_LE(
            std::abs(static_cast<double>(stage.quotas[i]) - p(i) / free_weight * static_cast<double>(free_sequences)),
            1.0);
      }
    }
  }
}

TEST(Plan, StagesMayHaveSequencesOfTheirOwnLength) {
  Mixture mixture = mixture_of({{5, 3, 0}, {1, 1, 0}}, 0);
  mixture.stages[1].seq_len = 40;
  // 850 tokens a stage. The first is cut to whole steps of 80, the last need not be.
  const StreamPlan plan = make_stream_plan(mixture, kSources, 10, 2 * 850, 80);
  EXPECT_EQ(plan.stages[0].seq_len, 10);
  EXPECT_EQ(plan.stages[0].quotas, (std::vector<int64_t>{50, 30, 0}));
  EXPECT_EQ(plan.stages[1].seq_len, 40);
  EXPECT_EQ(plan.stages[1].quotas, (std::vector<int64_t>{11, 10, 0}));
  EXPECT_EQ(plan.num_sequences(), 80 + 21);
  EXPECT_EQ(plan.num_tokens(), 800 + 840);
  // 500 tokens of web were read, 300 of code: the next sequences of 40 begin at 520 and 320.
  EXPECT_EQ(plan.stages[1].first[0], 13);
  EXPECT_EQ(plan.stages[1].first[1], 8);
  EXPECT_TRUE(print_stream_plan(plan).find("0.720  of 40 tokens\n") != std::string::npos) << print_stream_plan(plan);

  // Said of a stage or for all: the same plan.
  mixture.stages[1].seq_len = 10;
  const std::string alike = make_stream_plan(mixture, kSources, 10, 1700, 80).hash();
  mixture.stages[1].seq_len = 0;
  EXPECT_EQ(make_stream_plan(mixture, kSources, 10, 1700, 80).hash(), alike);
  EXPECT_NE(plan.hash(), alike);
  // Stages alike share a step: only the last of them is cut.
  mixture = mixture_of({{1, 0, 0}, {1, 0, 0}, {1, 0, 0}}, 0);
  mixture.stages[2].seq_len = 40;
  const StreamPlan three = make_stream_plan(mixture, kSources, 10, 3 * 850, 80);
  EXPECT_EQ(three.stages[0].num_sequences, 85);
  EXPECT_EQ(three.stages[1].num_sequences, 83);
}

TEST(Plan, EpochsAreCountedOverAllLengths) {
  Mixture mixture = mixture_of({{0, 1, 0}, {0, 1, 0}}, 1);
  mixture.stages[1].seq_len = 40;  // 25 sequences an epoch of code
  const StreamPlan plan = make_stream_plan(mixture, kSources, 10, 2 * 480, 80);
  EXPECT_EQ(plan.stages[1].first[1], 12);
  EXPECT_EQ(plan.stages[1].quotas[1], 12);
  expect_error(ErrorKind::kUsage, "stage s1 lacks 120 tokens: its sources are exhausted",
               [&] { make_stream_plan(mixture, kSources, 10, 2 * 560, 80); });
  mixture.stages[0].weights = {1, 0, 0};
  mixture.stages[1].seq_len = 2000;
  expect_error(ErrorKind::kUsage, "source code has 1001 tokens; one sequence of stage s1 and its look-ahead need 2001",
               [&] { make_stream_plan(mixture, kSources, 10, 2 * 2000, 2000); });
  mixture.stages[1].seq_len = 40;
  expect_error(ErrorKind::kUsage, "stage s0 has 70 tokens under this profile, too few to end with a whole step",
               [&] { make_stream_plan(mixture, kSources, 10, 2 * 70, 80); });
}

TEST(Plan, Profiles) {
  Mixture mixture = mixture_of({{1, 1, 1}, {1, 1, 1}}, 0);
  mixture.profiles = {{"dev", 500, 0, 0}, {"proxy", 0, 400, 0}, {"half", 0, 0, 0.5}};
  EXPECT_EQ(profile_tokens(mixture, "dev", 3), 500);
  EXPECT_EQ(profile_tokens(mixture, "proxy", 3), 1200);
  EXPECT_EQ(profile_tokens(mixture, "half", 3), 1000);
  expect_error(ErrorKind::kUsage, "no profile \"full\"", [&] { profile_tokens(mixture, "full", 3); });
  // Stages keep their proportions.
  const StreamPlan plan = make_stream_plan(mixture, kSources, 10, 500, 0);
  EXPECT_EQ(plan.stages[0].num_sequences, 25);
  EXPECT_EQ(plan.stages[1].num_sequences, 25);
}

TEST(Plan, TheHashFollowsContentAndQuotas) {
  const Mixture mixture = mixture_of({{1, 1, 1}}, 0);
  const std::string hash = make_stream_plan(mixture, kSources, 10, 1000, 0).hash();
  EXPECT_EQ(make_stream_plan(mixture, kSources, 10, 1000, 0).hash(), hash);
  EXPECT_NE(make_stream_plan(mixture, kSources, 10, 1010, 0).hash(), hash);
  EXPECT_NE(make_stream_plan(mixture, kSources, 11, 1100, 0).hash(), hash);
  auto other = kSources;
  other[2].hash = "n";
  EXPECT_NE(make_stream_plan(mixture, other, 10, 1000, 0).hash(), hash);
}

}  // namespace
}  // namespace nmoe
