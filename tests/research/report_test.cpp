#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "research/report/statistics.h"
#include "research/report/sweep_report.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe::test {
namespace {

// The usual tables of Student's t.
TEST(Statistics, QuantilesOfT) {
  EXPECT_NEAR(t_quantile(1, 0.95), 12.7062, 1e-4);
  EXPECT_NEAR(t_quantile(2, 0.95), 4.30265, 1e-5);
  EXPECT_NEAR(t_quantile(4, 0.95), 2.77645, 1e-5);
  EXPECT_NEAR(t_quantile(10, 0.99), 3.16927, 1e-5);
  EXPECT_NEAR(t_quantile(30, 0.95), 2.04227, 1e-5);
  EXPECT_NEAR(t_quantile(1e6, 0.95), 1.959966, 1e-5);
  EXPECT_NEAR(t_quantile(1, 0.5), 1.0, 1e-10);  // of Cauchy's
}

TEST(Statistics, SpreadByHand) {
  const double values[] = {1.0, 2.0, 4.0, 5.0};
  const Spread spread = spread_of(values);
  EXPECT_DOUBLE_EQ(spread.mean, 3.0);
  EXPECT_NEAR(*spread.deviation, std::sqrt(10.0 / 3.0), 1e-12);
  EXPECT_NEAR(*spread.half_width, 3.182446 * std::sqrt(10.0 / 3.0) / 2.0, 1e-5);
  EXPECT_FALSE(spread_of({values, 1}).deviation.has_value());
}

SweepEntry entry(int64_t point, int64_t seed, double goal, double tokens = 100.0) {
  return {.name = fmt::format("a-{}-s{}", point, seed),
          .point = point,
          .seed = seed,
          .values = fmt::format("x={}", point),
          .state = SweepRunState::kDone,
          .goal = goal,
          .curve = {{50.0, 5.0, goal + 1.0}, {tokens, tokens / 10.0, goal}}};
}

// Seeds differ more than points do: paired, the difference is known all the same.
TEST(SweepReport, PairsSeeds) {
  SweepState state{.name = "a", .goal = "valid/loss"};
  for (const int64_t seed : {1, 2, 3}) {
    const double of_seed = 0.5 * static_cast<double>(seed);
    state.runs.push_back(entry(1, seed, 2.0 + of_seed + 0.01 * static_cast<double>(seed)));
    state.runs.push_back(entry(2, seed, 1.9 + of_seed));
  }
  state.runs.push_back(entry(2, 4, 9.0));
  state.runs.back().confirms = true;
  state.runs.push_back({.name = "a-3-s1", .point = 3, .state = SweepRunState::kDiverged, .reason = "NaN"});
  const SweepReport report = report_sweep(state, SweepAmount::kTokens);
  ASSERT_EQ(report.ranked.size(), 2u);
  EXPECT_EQ(report.ranked[0].point, 2);
  EXPECT_FALSE(report.ranked[0].behind_first.has_value());
  EXPECT_EQ(report.ranked[0].confirmed->mean, 9.0);
  const PointReport& second = report.ranked[1];
  EXPECT_EQ(second.paired, 3);
  EXPECT_NEAR(second.behind_first->mean, 0.12, 1e-12);
  EXPECT_NEAR(*second.behind_first->half_width, 4.30265 * 0.01 / std::sqrt(3.0), 1e-6);
  EXPECT_NEAR(*second.goal.deviation, 0.51, 1e-12);
  ASSERT_EQ(report.others.size(), 1u);
  const std::string text = print_sweep_report(report, false);
  EXPECT_TRUE(contains(text, "+0.1200 +- 0.0248"));
  EXPECT_TRUE(contains(text, "NaN"));
}

// A run that went on for longer counts with what it had where the shortest ended.
TEST(SweepReport, AlignsAtWhatAllHave) {
  SweepState state{.name = "a", .goal = "valid/loss", .runs = {entry(1, 1, 2.0, 100.0), entry(2, 1, 1.5, 200.0)}};
  const SweepReport report = report_sweep(state, SweepAmount::kTokens);
  EXPECT_EQ(report.at, 100.0);
  EXPECT_EQ(report.ranked[0].point, 1);
  EXPECT_EQ(report.ranked[1].goal.mean, 2.5);
  state.runs[0].state = state.runs[1].state = SweepRunState::kBegun;
  EXPECT_TRUE(contains(error_of([&] { report_sweep(state, SweepAmount::kTokens); }).what(), "no run of the sweep a"));
}

class ReportTest : public TempDirTest {};

TEST_F(ReportTest, AThousandRunsTakeLittleTime) {
  SweepState state{.name = "a", .goal = "valid/loss"};
  for (int64_t run = 0; run < 1000; ++run) {
    state.runs.push_back(entry(1 + run / 4, 1 + run % 4, 2.0 + static_cast<double>(run % 37)));
    for (int i = 0; i < 20; ++i) state.runs.back().curve.insert(state.runs.back().curve.begin(), {1.0 * i, 1.0, 3.0});
  }
  write_sweep_state(dir_, state);
  const auto begin = std::chrono::steady_clock::now();
  const SweepReport report = report_sweep(*read_sweep_state(dir_), SweepAmount::kTokens);
  EXPECT_EQ(report.ranked.size(), 250u);
  EXPECT_FALSE(print_sweep_report(report, true).empty());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  RecordProperty("seconds", fmt::format("{}", seconds));
  EXPECT_LT(seconds, 10.0);  // a second where the machine is quiet and the build optimised
}

}  // namespace
}  // namespace nmoe::test
