#include "track/run_compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/errors.h"
#include "support/temp_dir.h"
#include "track/braille_plot.h"
#include "track/metrics.h"
#include "track/metrics_reader.h"
#include "track/tensorboard.h"

namespace nmoe {
namespace {

class RunCompareTest : public test::TempDirTest {
 protected:
  RunCompareTest() { ::unsetenv("NMOE_RUN"); }

  // A run that logs `losses` every `every` steps of `step_tokens` each, and validates at its end.
  std::string run(const std::string& config, const std::vector<double>& losses, int64_t every, double step_tokens,
                  double valid) {
    const std::string id = store_.start({.name = "r", .experiment = "e", .config_json = config});
    MetricsWriter writer(metrics_path(dir_, id), 3600.0);
    int64_t step = 0;
    for (const double loss : losses) {
      step += every;
      writer.append(
          {.step = step, .scalars = {{"train/loss", loss}, {"train/tokens_seen", double(step) * step_tokens}}});
    }
    writer.append({.step = step, .scalars = {{"valid/loss", valid}}});
    return id;
  }

  RunStore store_{dir_ / "experiments.db"};
};

TEST_F(RunCompareTest, AtEqualStepsAndTokens) {
  const std::vector<std::string> ids = {run(R"({"run": {"seed": 1}})", {5, 4, NAN, 2}, 10, 100, 2.2),
                                        run(R"({"run": {"seed": 1}})", {6, 3, 1}, 5, 400, 1.1)};
  // Up to step 15: 5 at step 10 and 1 at step 15. Up to 4,000 tokens: 2 at step 40, and 3 at step 10.
  const RunComparison steps = compare_runs(store_, dir_, ids, Progression::kSteps);
  EXPECT_EQ(steps.at, 15);
  EXPECT_EQ(steps.losses[0].train.at, 5);
  EXPECT_EQ(steps.losses[0].at_step, 10);
  EXPECT_EQ(steps.losses[1].train.at, 1);
  EXPECT_EQ(steps.losses[0].valid.at, std::nullopt) << "validated at step 40";
  EXPECT_EQ(steps.losses[1].valid.at, 1.1);
  EXPECT_EQ(steps.losses[0].train.last, 2);
  EXPECT_EQ(steps.losses[0].train.best, 2) << "NaN is not the best";
  const RunComparison tokens = compare_runs(store_, dir_, ids, Progression::kTokens);
  EXPECT_EQ(tokens.at, 4000);
  EXPECT_EQ(tokens.losses[0].train.at, 2);
  EXPECT_EQ(tokens.losses[1].train.at, 3);
  EXPECT_EQ(tokens.losses[1].at_step, 10);
  EXPECT_EQ(tokens.losses[1].reached, 6000);
  EXPECT_TRUE(tokens.differences.empty());
}

TEST_F(RunCompareTest, ConfigurationsAndSeeds) {
  const auto config = [](int seed, const char* lr) {
    return fmt::format(R"({{"run": {{"seed": {0}, "name": "r{0}"}}, "optim": {{"lr": {1}}}}})", seed, lr);
  };
  const std::vector<std::string> ids = {run(config(1, "1"), {5, 2}, 1, 1, 4), run(config(2, "1"), {5, 4}, 1, 1, 7),
                                        run(config(3, "1"), {5, 6}, 1, 1, 4), run(config(1, "3"), {5, 9}, 1, 1, 9)};
  const RunComparison comparison = compare_runs(store_, dir_, ids, Progression::kSteps);
  ASSERT_EQ(comparison.differences.size(), 2u);
  EXPECT_EQ(comparison.differences[0].key, "optim.lr");
  EXPECT_EQ(comparison.differences[0].values, (std::vector<std::string>{"1", "1", "1", "3"}));
  EXPECT_EQ(comparison.differences[1].key, "run.seed");
  ASSERT_EQ(comparison.seeds.size(), 1u);
  const RunComparison::Seeds& seeds = comparison.seeds[0];
  EXPECT_EQ(seeds.runs, (std::vector<size_t>{0, 1, 2}));
  EXPECT_DOUBLE_EQ(seeds.train_mean, 4);       // of 2, 4, 6
  EXPECT_DOUBLE_EQ(seeds.train_deviation, 2);  // sqrt((4 + 0 + 4) / 2)
  EXPECT_DOUBLE_EQ(seeds.valid_mean.value(), 5);
  EXPECT_DOUBLE_EQ(seeds.valid_deviation.value(), std::sqrt(3.0));

  const std::vector<std::string> configs = {R"({"a": 1, "b": {"c": [1]}})", R"({"b": {"c": [1], "d": "x"}})"};
  const auto differences = config_differences(configs);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].values, (std::vector<std::string>{"1", ""}));
  EXPECT_EQ(differences[1].values, (std::vector<std::string>{"", "\"x\""}));
}

// Which is why one looks: the others are compared at what they reached, and it stands beside them.
TEST_F(RunCompareTest, ARunThatFailedHidesNothing) {
  const std::string none = run("{}", {}, 1, 1, 1), early = run("{}", {9}, 1, 1, 8);
  store_.finish(none, RunStatus::kFailed, "no memory");
  store_.finish(early, RunStatus::kFailedNan, "a NaN");
  const std::string never = store_.start({.name = "r", .experiment = "e", .config_json = "{}"});  // no metrics at all
  store_.finish(never, RunStatus::kFailed, "no corpus");
  const std::vector<std::string> ids = {none, run("{}", {5, 4, 3}, 10, 1, 2), early, run("{}", {6, 2}, 10, 1, 7),
                                        never};
  const RunComparison comparison = compare_runs(store_, dir_, ids, Progression::kSteps);
  EXPECT_EQ(comparison.at, 20);
  EXPECT_EQ(comparison.losses[1].train.at, 4);
  EXPECT_EQ(comparison.losses[3].train.at, 2);
  for (const size_t failed : {0u, 2u, 4u}) EXPECT_EQ(comparison.losses[failed].train.at, std::nullopt);
  EXPECT_EQ(comparison.losses[0].reached, 0);
  EXPECT_EQ(comparison.losses[2].reached, 1);
  EXPECT_EQ(comparison.losses[2].train.last, 9);
  ASSERT_EQ(comparison.seeds.size(), 1u);
  EXPECT_EQ(comparison.seeds[0].runs, (std::vector<size_t>{1, 3}));
  EXPECT_DOUBLE_EQ(comparison.seeds[0].train_mean, 3);

  // Among themselves failed runs are compared as others are.
  const RunComparison failed = compare_runs(store_, dir_, std::vector{early, none}, Progression::kSteps);
  EXPECT_EQ(failed.at, 1);
  EXPECT_EQ(failed.losses[0].train.at, 9);
  EXPECT_TRUE(test::contains(test::error_of([&] {
                               compare_runs(store_, dir_, std::vector{none, never}, Progression::kSteps);
                             }).what(),
                             "none of these runs has recorded a loss"));
}

TEST(BraillePlotTest, ASpikeAndANan) {
  Series series;
  for (int64_t step = 1; step <= 10'000; ++step) series.put(step, step == 5050 ? 9.0 : 1.0, 0);
  series.put(7500, NAN, 0);
  const std::string plot = braille_plot(series, 51, 9);  // 40 by 6 characters
  std::vector<std::string> lines;
  for (size_t at = 0; at < plot.size(); at = plot.find('\n', at) + 1)
    lines.push_back(plot.substr(at, plot.find('\n', at) - at));
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_TRUE(lines[0].starts_with("        9 ┤")) << plot;
  EXPECT_TRUE(lines[5].starts_with("        1 ┤")) << plot;
  // Each line has blanks (U+2800) but for the spike's column; the last is full but for it, at most.
  const auto num_filled = [&](const std::string& line) {
    int filled = 0;
    for (size_t i = line.find("│") == std::string::npos ? line.find("┤") + 3 : line.find("│") + 3; i + 3 <= line.size();
         i += 3) {
      filled += line.substr(i, 3) != "\u2800" ? 1 : 0;
    }
    return filled;
  };
  for (int row = 0; row < 5; ++row) EXPECT_EQ(num_filled(lines[size_t(row)]), 1) << plot;
  EXPECT_EQ(num_filled(lines[5]), 40) << plot;
  EXPECT_EQ(std::ranges::count(lines[6].substr(0, 13 + 40), 'x'), 1) << plot;
  Series bad;
  bad.put(1, NAN, 0);
  EXPECT_EQ(braille_plot(bad, 80, 20), "no finite value in 1 steps\n");
}

// As TensorFlow's own writer puts them down: its record of a version, and the fields of an event.
TEST(TensorboardTest, Bytes) {
  const std::string head = tensorboard_head(0.0);
  EXPECT_EQ(head.substr(0, 8), std::string("\x18\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(head.size(), 8 + 4 + 24 + 4u);
  EXPECT_EQ(head.substr(12, 11), std::string("\x09\0\0\0\0\0\0\0\0\x1a\x0d", 11));
  EXPECT_EQ(head.substr(23, 13), "brain.Event:2");
  // The checksum that every TensorBoard file of this length begins with.
  EXPECT_EQ(head.substr(8, 4), std::string("\xa3\x7f\x4b\x22", 4));
  const std::string event = tensorboard_scalar("a", 300, 1.0, 2.0);
  EXPECT_EQ(event.substr(12, event.size() - 16),
            std::string("\x09\0\0\0\0\0\0\0\x40"  // 1: wall time 2.0
                        "\x10\xac\x02"            // 2: step 300
                        "\x2a\x0a\x0a\x08"        // 5: summary of 10 bytes, 1: value of 8
                        "\x0a\x01\x61"            // 1: tag
                        "\x15\0\0\x80\x3f",
                        9 + 3 + 4 + 3 + 5));  // 2: 1.0f
}

}  // namespace
}  // namespace nmoe
