// Runs that are stopped in the middle, kindly or not, end up where an undisturbed one does.
#include <csignal>
#include <sstream>
#include <thread>

#include "cli/cli_test.h"

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

// `n runs` tells of the step that was saved, whether it was one of those logged or not.
TEST_F(InterruptionTest, AnInterruptedRunIsListedWithTheLossOfItsCheckpoint) {
  test::Program program = start(train({"train.log_every=100000"}));
  ASSERT_TRUE(program.wait_for("train step 1/"));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().exit_code, 0);
  const int64_t steps = saved_step();
  undisturbed(steps);
  const auto step_and_loss = [&](const std::string& run) {
    std::istringstream line(listed(run));
    std::string id, name, status, step, loss;
    line >> id >> name >> status >> step >> loss;
    return step + " " + loss;
  };
  EXPECT_TRUE(step_and_loss("tiny").starts_with(fmt::format("{} ", steps)));
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

}  // namespace
}  // namespace nmoe
