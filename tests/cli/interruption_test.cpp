// Runs that are stopped in the middle, kindly or not, end up where an undisturbed one does.
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli_test.h"
#include "track/metrics_file.h"
#include "track/metrics_reader.h"

namespace nmoe {
namespace {

class InterruptionTest : public CliTest {
 protected:
  InterruptionTest() {
    prepare();
    std::string config(test::kTinyToml);
    const std::string decay = "decay = 40\n";
    config.replace(config.find(decay), decay.size(), "decay = 1000000\n");  // a run may go on for so long
    write("tiny.toml", config);
  }

  // A run too long to end by itself.
  test::Program start(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {NMOE_PROGRAM};
    command.insert(command.end(), arguments.begin(), arguments.end());
    command.insert(command.end(), {"--set", "train.steps=1000000"});
    return {dir_, command};
  }

  int64_t saved_step() const { return std::stoll(info("runs/checkpoints/tiny", "step")); }
  // Until a checkpoint is there that is newer than that of `steps`: a disk may be slower than many steps.
  void wait_for_newer(int64_t steps) const {
    const auto is_newer = [&] {
      const auto latest = latest_checkpoint(dir_ / "runs/checkpoints/tiny");
      return latest && latest->filename() > fmt::format("step_{:08}", steps);
    };
    for (int i = 0; i < 30'000 && !is_newer(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(is_newer());
  }

  // Weights after so many steps without interruption.
  std::string undisturbed(int64_t steps) const {
    output(train({"run.name=straight", fmt::format("train.steps={}", steps), "train.log_every=1000"}));
    return weights("straight");
  }
};

TEST_F(InterruptionTest, ATerminationSignalSavesAndLeaves) {
  int64_t steps = 0;
  for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}}) {
    test::Program program = start(resume({}));
    ASSERT_TRUE(program.wait_for(fmt::format("train step {}/", steps + 3)));
    program.send(signal);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    steps = saved_step();
    EXPECT_TRUE(contains(outcome.out, fmt::format("stopped after step {};", steps)));
    EXPECT_TRUE(contains(outcome.out, "--resume"));
    EXPECT_TRUE(contains(listed("tiny"), " interrupted "));
    EXPECT_TRUE(contains(listed("tiny"), fmt::format("stopped by {}", name)));
  }
  steps += 3;
  output(resume({fmt::format("train.steps={}", steps)}));
  EXPECT_TRUE(contains(listed("tiny"), " completed "));
  EXPECT_EQ(weights("tiny"), undisturbed(steps));
}

// `n runs` tells of the step that was saved, whether it was one of those logged or not (its `loss` is of these alone).
TEST_F(InterruptionTest, AnInterruptedRunIsListedWithTheLossOfItsCheckpoint) {
  test::Program program = start(train({"train.log_every=100000"}));
  ASSERT_TRUE(program.wait_for("train step 1/"));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().exit_code, 0);
  const int64_t steps = saved_step();
  undisturbed(steps);
  const auto step_and_loss = [&](const std::string& run) {
    const auto runs = parse_json<nlohmann::json>(output({"runs", "--filter", "name=" + run, "--json"}));
    return std::pair(runs.at(0).at("step").get<int64_t>(), runs.at(0).at("last_loss").get<double>());
  };
  EXPECT_EQ(step_and_loss("tiny").first, steps);
  EXPECT_EQ(step_and_loss("tiny"), step_and_loss("straight"));
}

// The signal is rank 0's to hear; all stop behind the same step.
TEST_F(InterruptionTest, RanksStopTogether) {
  const std::vector<std::string> two = {"parallel.ranks=2", "train.microbatch_seqs=2"};
  test::Program program = start(resume(two));
  ASSERT_TRUE(program.wait_for("train step 4/"));
  program.send(SIGTERM);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  int64_t steps = saved_step();
  EXPECT_TRUE(contains(outcome.out, fmt::format("stopped after step {};", steps)));
  EXPECT_TRUE(contains(listed("tiny"), "stopped by SIGTERM"));
  steps += 3;
  const auto with = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), two.begin(), two.end());
    settings.push_back(fmt::format("train.steps={}", steps));
    return settings;
  };
  output(resume(with({})));
  output(train(with({"run.name=straight", "train.log_every=1000"})));
  EXPECT_EQ(weights("tiny"), weights("straight"));
}

// Both signals wait for the stopped process, so that none is answered before the other is there.
TEST_F(InterruptionTest, TheSecondSignalLeavesAtOnce) {
  test::Program program = start(train({}));
  ASSERT_TRUE(program.wait_for("train step 2/"));
  program.send(SIGSTOP);
  program.send(SIGINT);
  program.send(SIGTERM);
  program.send(SIGCONT);
  const int exit_code = program.wait().exit_code;
  EXPECT_TRUE(exit_code == 128 + SIGINT || exit_code == 128 + SIGTERM) << exit_code;
  EXPECT_FALSE(fs::exists(dir_ / "runs/checkpoints/tiny/step_00000002"));
  EXPECT_TRUE(contains(listed("tiny"), " dead "));
}

// kill -9 in the middle of whatever it does, checkpoints being written nearly all of the time.
TEST_F(InterruptionTest, AKilledRunGoesOnFromItsLastCheckpoint) {
  int64_t steps = 0;
  for (int every = 1; every <= 3; ++every) {
    test::Program program = start(resume({fmt::format("checkpoint.every={}", every)}));
    ASSERT_TRUE(program.wait_for(fmt::format("train step {}/", steps + 20)));
    wait_for_newer(steps);
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * every));
    program.send(SIGKILL);
    EXPECT_EQ(program.wait().exit_code, 128 + SIGKILL);
    EXPECT_TRUE(contains(listed("tiny"), " dead "));
    EXPECT_TRUE(contains(output({"checkpoint", "verify", "runs/checkpoints/tiny"}), "is whole"));
    EXPECT_GT(saved_step(), steps);
    steps = saved_step();
  }
  steps += 3;
  const Outcome outcome = n(resume({fmt::format("train.steps={}", steps)}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "resumed from runs/checkpoints/tiny/step_"));
  EXPECT_EQ(weights("tiny"), undisturbed(steps));

  // What the killed processes were writing is gone.
  for (const auto& entry : fs::directory_iterator(dir_ / "runs/checkpoints/tiny")) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("step_")) << entry.path();
  }
}

// kill -9 again and again, with somebody looking on: what was measured is what an undisturbed run measures, each value
// once. NMOE_METRIC_KILLS: how often.
TEST_F(InterruptionTest, EachValueOnceWhereverItWasKilled) {
  ::setenv("NMOE_RUN", "killed", /*replace=*/1);
  const fs::path database = metrics_path(dir_ / "runs", "killed");
  const char* wanted = std::getenv("NMOE_METRIC_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 5;
  const std::vector<std::string> tags = {"train/loss", "router/layer_01/load"};
  std::optional<MetricsReader> reader;
  const auto look = [&] {
    if (!reader && has_metrics(database)) {
      reader.emplace(database);
      reader->load(tags);
    }
    if (reader) reader->poll();
  };
  int64_t steps = 0;
  for (int kill = 0; kill < kills; ++kill) {
    test::Program program = start(resume({"checkpoint.every=4", "train.valid_every=3"}));
    ASSERT_TRUE(program.wait_for(fmt::format("train step {}/", steps + 5))) << program.errors();
    wait_for_newer(steps);
    look();
    std::this_thread::sleep_for(std::chrono::milliseconds(kill * 7 % 23));
    program.send(SIGKILL);
    EXPECT_EQ(program.wait().exit_code, 128 + SIGKILL);
    look();
    steps = saved_step();
  }
  steps += 3;
  output(resume({fmt::format("train.steps={}", steps), "train.valid_every=3"}));
  look();
  ::setenv("NMOE_RUN", "straight", /*replace=*/1);
  output(train({"run.name=straight", fmt::format("train.steps={}", steps), "train.valid_every=3"}));
  ::unsetenv("NMOE_RUN");

  struct Values {
    std::vector<std::pair<int64_t, double>> losses, validations;
    std::vector<std::pair<int64_t, std::vector<float>>> loads;
    bool operator==(const Values&) const = default;
  };
  const auto values_of = [](const fs::path& path) {
    Values all;
    MetricsView view(path);
    const auto into = [](auto& list) {
      return [&list](int64_t step, auto value, int64_t) { list.emplace_back(step, std::move(value)); };
    };
    view.series("train/loss", MetricsView::kNoLimit, into(all.losses));
    view.series("valid/loss", MetricsView::kNoLimit, into(all.validations));
    view.arrays("router/layer_01/load", MetricsView::kNoLimit, into(all.loads));
    std::ranges::sort(all.losses);
    std::ranges::sort(all.validations);
    std::ranges::sort(all.loads);
    return all;
  };
  const Values killed = values_of(database);
  EXPECT_EQ(std::ssize(killed.losses), steps);
  EXPECT_EQ(killed, values_of(metrics_path(dir_ / "runs", "straight")));
  const Series& seen = reader->series("train/loss");
  ASSERT_EQ(std::ssize(seen.steps()), steps) << "who looked on has what a rewind left";
  for (size_t i = 0; i < killed.losses.size(); ++i) EXPECT_EQ(seen.values()[i], killed.losses[i].second) << i;
}

}  // namespace
}  // namespace nmoe
