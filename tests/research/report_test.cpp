#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "research/report/run_report.h"
#include "research/report/statistics.h"
#include "research/report/sweep_report.h"
#include "support/errors.h"
#include "support/temp_dir.h"
#include "track/live_file.h"
#include "track/metrics.h"
#include "track/metrics_reader.h"
#include "track/record.h"

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
          .curve = {.points = {{50.0, 5.0, goal + 1.0}, {tokens, tokens / 10.0, goal}}}};
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
  const Ranking report = report_sweep(state, TrainingAmount::kTokens);
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
  const std::string text = print_ranking(report, false);
  EXPECT_TRUE(contains(text, "+0.1200 +- 0.0248"));
  EXPECT_TRUE(contains(text, "NaN"));
}

// A run that went on for longer counts with what it had where the shortest ended.
TEST(SweepReport, AlignsAtWhatAllHave) {
  SweepState state{.name = "a", .goal = "valid/loss", .runs = {entry(1, 1, 2.0, 100.0), entry(2, 1, 1.5, 200.0)}};
  const Ranking report = report_sweep(state, TrainingAmount::kTokens);
  EXPECT_EQ(report.at, 100.0);
  EXPECT_EQ(report.ranked[0].point, 1);
  EXPECT_EQ(report.ranked[1].goal.mean, 2.5);
  state.runs[0].state = state.runs[1].state = SweepRunState::kBegun;
  EXPECT_TRUE(
      contains(error_of([&] { report_sweep(state, TrainingAmount::kTokens); }).what(), "no run of the sweep a"));
}

class ReportTest : public TempDirTest {};

TEST_F(ReportTest, AThousandRunsTakeLittleTime) {
  SweepState state{.name = "a", .goal = "valid/loss"};
  for (int64_t run = 0; run < 1000; ++run) {
    state.runs.push_back(entry(1 + run / 4, 1 + run % 4, 2.0 + static_cast<double>(run % 37)));
    std::vector<GoalPoint>& points = state.runs.back().curve.points;
    for (int i = 0; i < 20; ++i) points.insert(points.begin(), {1.0 * i, 1.0, 3.0});
  }
  write_sweep_state(dir_, state);
  const auto begin = std::chrono::steady_clock::now();
  const Ranking report = report_sweep(*read_sweep_state(dir_), TrainingAmount::kTokens);
  EXPECT_EQ(report.ranked.size(), 250u);
  EXPECT_FALSE(print_ranking(report, true).empty());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  RecordProperty("seconds", fmt::format("{}", seconds));
  EXPECT_LT(seconds, 10.0);  // a second where the machine is quiet and the build optimised
}

// Runs of any origin, with metrics as runs record them.
class RunReportTest : public TempDirTest {
 protected:
  RunReportTest() { ::unsetenv("NMOE_RUN"); }

  // One that logs a loss every `every` steps of `step_tokens` tokens, and validates then where there is `valid`.
  std::string run(const std::string& config, const std::vector<double>& losses, int64_t every, double step_tokens,
                  bool valid = true) {
    const std::string id = store_.start({.name = "r", .experiment = "e", .config_json = config});
    const fs::path path = live_path(metrics_path(dir_, id));
    make_directories(path.parent_path());
    LiveFile live(path);
    int64_t step = 0;
    for (const double loss : losses) {
      step += every;
      const double tokens = static_cast<double>(step) * step_tokens;
      MetricRecord record{.step = step,
                          .scalars = {{"train/loss", loss},
                                      {"train/tokens_seen", tokens},
                                      {"train/flops", 10.0 * tokens},
                                      {"train/grad_norm", loss / 2.0},
                                      {"router/layer_01/max_load", 10.0 * loss}}};
      if (valid) record.scalars.emplace_back("valid/loss", loss + 1.0);
      live.append(encode_record(record));
    }
    return id;
  }
  std::string finished(const std::string& config, const std::vector<double>& losses, int64_t every = 1,
                       double step_tokens = 1.0, bool valid = true) {
    const std::string id = run(config, losses, every, step_tokens, valid);
    store_.finish(id, RunStatus::kCompleted, "");
    return id;
  }
  static std::string config(int seed, const char* lr) {
    return fmt::format(R"({{"run.seed": {}, "run.threads": {}, "optim.rest.lr": {}}})", seed, seed, lr);
  }
  RunReport report(const RunReportOptions& options = {}) { return report_runs(store_, dir_, store_.list(), options); }

  RunStore store_{dir_ / "experiments.db"};
};

// Of batches of other sizes, where steps would say the opposite.
TEST_F(RunReportTest, AtEqualTokens) {
  const std::string small = finished(config(1, "1"), {5, 4, 3, 2}, 10, 100),
                    large = finished(config(1, "2"), {6, 3, 1}, 5, 400);
  const RunReport both = report();
  EXPECT_EQ(both.ranking.goal, "valid/loss");
  EXPECT_EQ(both.ranking.at, 4000.0);
  ASSERT_EQ(both.ranking.ranked.size(), 2u);
  EXPECT_EQ(both.ranking.ranked[0].runs, std::vector{small});
  EXPECT_EQ(both.ranking.ranked[0].goal.mean, 3.0);
  EXPECT_EQ(both.ranking.ranked[1].goal.mean, 4.0) << "of " << large << " at step 10";
  EXPECT_EQ(both.ranking.ranked[0].largest_grad_norm, 2.5);
  EXPECT_EQ(both.ranking.ranked[1].largest_load, 60.0) << "of all its steps";
  EXPECT_EQ(report({.by = TrainingAmount::kFlops}).ranking.at, 40'000.0);
  ASSERT_EQ(both.differences.size(), 1u) << "threads are none";
  EXPECT_EQ(both.differences[0].values, (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(report({.goal = "train/loss"}).ranking.ranked[0].goal.mean, 3.5) << "of 5, 4, 3 and 2";
  const Ranking largest = report({.goal = "train/grad_norm", .goal_is_largest = true}).ranking;
  EXPECT_EQ(largest.ranked[0].goal.mean, 1.5);
  EXPECT_TRUE(contains(error_of([&] { report({.goal = "eval/none"}); }).what(), "no run has recorded eval/none"));
}

TEST_F(RunReportTest, SeedsArePairedAndFailuresStandApart) {
  for (const int seed : {1, 2, 3}) {
    finished(config(seed, "1"), {5.0, 2.0 * seed});
    finished(config(seed, "2"), {5.0, 2.0 * seed + 0.5});
  }
  const std::string repeated = finished(config(3, "2"), {5.0, 6.5});
  const std::string early = run(config(4, "1"), {5.0}, 1, 1.0), none = run(config(4, "2"), {}, 1, 1.0);
  store_.finish(early, RunStatus::kFailedNan, "a NaN");
  store_.finish(none, RunStatus::kFailed, "no memory");
  const std::string behind = run(config(5, "1"), {5.0}, 1, 1.0), far = run(config(4, "3"), {5, 9, 9}, 1, 1.0);
  const Ranking ranking = report().ranking;
  EXPECT_EQ(ranking.at, 2.0);
  ASSERT_EQ(ranking.ranked.size(), 3u);
  EXPECT_EQ(ranking.ranked[0].goal.mean, 5.0);
  EXPECT_EQ(ranking.ranked[0].goal.deviation, 2.0);
  EXPECT_EQ(ranking.ranked[1].paired, 3);
  EXPECT_NEAR(ranking.ranked[1].behind_first->mean, 0.5, 1e-12);
  EXPECT_NEAR(*ranking.ranked[1].behind_first->half_width, 0.0, 1e-12);
  EXPECT_EQ(ranking.ranked[2].runs, std::vector{far}) << "it has come as far as those that have ended";
  ASSERT_EQ(ranking.others.size(), 4u);
  std::map<std::string, std::string> reasons;
  for (const Contender& other : ranking.others) reasons[other.name] = other.reason;
  EXPECT_EQ(reasons[early], "a NaN");
  EXPECT_EQ(reasons[none], "no memory");
  EXPECT_TRUE(reasons.contains(behind));
  const bool newest_counts = reasons.size() == 4u && !reasons.contains(repeated);
  EXPECT_TRUE(newest_counts);
  EXPECT_TRUE(contains(print_run_report(report(), false), "configurations differ in"));
}

// What a database has is read once; not, where it has changed.
TEST_F(RunReportTest, DatabasesAreReadOnce) {
  const std::string id = store_.start({.name = "r", .experiment = "e", .config_json = "{}"});
  const fs::path path = metrics_path(dir_, id);
  const auto add = [&](int64_t step, double loss) {
    MetricsWriter writer(path, 3600.0);
    writer.append({.step = step, .scalars = {{"valid/loss", loss}, {"train/tokens_seen", static_cast<double>(step)}}});
  };
  const auto mean = [&] { return report().ranking.ranked.at(0).goal.mean; };
  add(1, 5.0);
  store_.finish(id, RunStatus::kCompleted, "");
  EXPECT_EQ(mean(), 5.0);
  const fs::path kept = path.parent_path() / "curve_valid_loss.json";
  ASSERT_TRUE(fs::exists(kept));
  std::string text = read_file(kept);
  text.replace(text.find("5.0"), 3, "7.0");
  write_file_atomically(kept, text);
  EXPECT_EQ(mean(), 7.0) << "from what was kept";
  add(2, 4.0);
  EXPECT_EQ(mean(), 4.0);
}

// As after the first time that they were compared.
TEST_F(RunReportTest, AThousandRunsOfAStoreTakeLittleTime) {
  const std::string first = store_.start({.name = "r", .experiment = "e", .config_json = config(0, "1")});
  const fs::path path = metrics_path(dir_, first);
  MetricsWriter(path, 3600.0).append({.step = 1, .scalars = {{"valid/loss", 5.0}, {"train/tokens_seen", 1.0}}});
  report();
  for (int i = 1; i < 1000; ++i) {
    const std::string id =
        store_.start({.name = "r", .experiment = "e", .config_json = config(i % 4, std::to_string(1 + i / 4).c_str())});
    const fs::path folder = metrics_path(dir_, id).parent_path();
    make_directories(folder);
    fs::create_hard_link(path, metrics_path(dir_, id));
    fs::copy_file(path.parent_path() / "curve_valid_loss.json", folder / "curve_valid_loss.json");
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(report().ranking.ranked.size(), 250u);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  RecordProperty("seconds", fmt::format("{}", seconds));
  fmt::print("1,000 runs of a store ranked in {:.2f} s\n", seconds);
  EXPECT_LT(seconds, 10.0);  // a second where the machine is quiet and the build optimised
}

TEST_F(RunReportTest, WithoutValidationTheSmoothedLossCounts) {
  finished(config(1, "1"), {5, 3}, 1, 1.0, /*valid=*/false);
  finished(config(1, "2"), {5, 4});
  const Ranking ranking = report().ranking;
  EXPECT_EQ(ranking.goal, "train/loss");
  EXPECT_EQ(ranking.ranked[0].goal.mean, 4.0);
  store_.finish(store_.list()[1].id, RunStatus::kFailed, "");
  store_.finish(store_.list()[0].id, RunStatus::kFailed, "");
  EXPECT_EQ(report().ranking.ranked.size(), 2u) << "failed runs among themselves";
}

}  // namespace
}  // namespace nmoe::test
