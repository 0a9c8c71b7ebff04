// GPUs of several processes: what they compute, and how they end. Skipped where there are too few.
#include "cli/processes.h"

namespace nmoe {
namespace {

class GpuProcessesTest : public ProcessesTest {
 protected:
  static Strings on_gpus(Strings arguments, int ranks) {
    arguments.insert(arguments.end(), {"--set", "run.device=cuda"});
    return with_ranks(arguments, ranks);
  }
  Program& start_on_gpus(int process, int count, const Strings& arguments) {
    return start(process, count, arguments, {fmt::format("LOCAL_RANK={}", process)});
  }

  // Whether a run on so many GPUs of one process can be.
  bool has_gpus(int count) {
    const Outcome outcome = n(on_gpus(train({"train.steps=1", fmt::format("run.name=probe{}", count)}), count));
    EXPECT_TRUE(outcome.exit_code == 0 || contains(outcome.err, "CUDA device")) << outcome.err;
    return outcome.exit_code == 0;
  }

  // What process 0 prints of a run on `ranks` GPUs of two processes.
  std::string run_two_on_gpus(const Strings& arguments) {
    Program &first = start_on_gpus(0, 2, arguments), &second = start_on_gpus(1, 2, arguments);
    const Outcome outcome = first.wait(), other = second.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(other.exit_code, 0) << other.err;
    return outcome.out;
  }
};

TEST_F(GpuProcessesTest, LearnWhatOneProcessLearnsAndTheSameEveryTime) {
  for (const int ranks : {2, 4}) {
    if (!has_gpus(ranks)) GTEST_SKIP() << "no " << ranks << " GPUs";
    const auto named = [&](const std::string& name, bool resumed = false, int steps = 12) {
      return on_gpus(train({fmt::format("run.name={}{}", name, ranks), fmt::format("train.steps={}", steps),
                            "train.valid_every=3", "checkpoint.every=5"},
                           resumed),
                     ranks);
    };
    const double expected = validation_loss(output(named("threads")));
    EXPECT_NEAR(validation_loss(run_two_on_gpus(named("processes"))), expected, 5e-3 * expected);
    run_two_on_gpus(named("again"));
    EXPECT_EQ(weights(fmt::format("processes{}", ranks)), weights(fmt::format("again{}", ranks)));
    run_two_on_gpus(named("halves", false, 6));
    run_two_on_gpus(named("halves", true));
    EXPECT_EQ(weights(fmt::format("halves{}", ranks)), weights(fmt::format("again{}", ranks)));
  }
}

// Replicas of experts, whose gradients travel and are added as they are kept.
TEST_F(GpuProcessesTest, GradientsInBf16AreSummedOverProcesses) {
  for (const int ranks : {2, 4}) {
    if (!has_gpus(ranks)) GTEST_SKIP() << "no " << ranks << " GPUs";
    const auto named = [&](const std::string& name) {
      return on_gpus(
          train({fmt::format("run.name={}{}", name, ranks), "train.gradients=bf16", "parallel.rebalance_every=0"}),
          ranks);
    };
    const double expected = validation_loss(output(named("threads")));
    EXPECT_NEAR(validation_loss(run_two_on_gpus(named("processes"))), expected, 5e-3 * expected);
    run_two_on_gpus(named("again"));
    EXPECT_EQ(weights(fmt::format("processes{}", ranks)), weights(fmt::format("again{}", ranks)));
  }
}

// In fp32 only the order of sums differs from that of CPU ranks.
TEST_F(GpuProcessesTest, AgreeWithTheCpuInFp32) {
  if (!has_gpus(2)) GTEST_SKIP() << "no 2 GPUs";
  Strings settings = {"train.steps=6", "run.precision=fp32"};
  settings.emplace_back("run.name=gpus");
  const double gpus = validation_loss(run_two_on_gpus(on_gpus(train(settings), 2)));
  settings.back() = "run.name=cpus";
  const double cpus = validation_loss(run_two(with_ranks(train(settings), 2)));
  EXPECT_NEAR(gpus, cpus, 1e-4 * cpus);
}

// While the others wait in a sum between GPUs, whose kernels only NCCL's abort ends.
TEST_F(GpuProcessesTest, OneThatIsKilledOrStoppedEndsAll) {
  if (!has_gpus(2)) GTEST_SKIP() << "no 2 GPUs";
  for (const int signal : {SIGKILL, SIGSTOP}) {
    for (const int lost : {0, 1}) {
      port_ = test::free_port();
      const std::string name = fmt::format("lost{}by{}", lost, signal);
      const Strings arguments = on_gpus(train({"run.name=" + name, "train.steps=1000000", "train.log_every=1",
                                               "optim.schedule.floor=1e-4", "checkpoint.every=4"}),
                                        2);
      Program* processes[] = {&start_on_gpus(0, 2, arguments), &start_on_gpus(1, 2, arguments)};
      ASSERT_TRUE(processes[0]->wait_for("train step 20/")) << processes[0]->errors() << processes[1]->errors();
      const auto since = std::chrono::steady_clock::now();
      processes[lost]->send(signal);
      const Outcome outcome = processes[1 - lost]->wait();
      EXPECT_LT(std::chrono::steady_clock::now() - since, 10s) << name;
      EXPECT_EQ(outcome.exit_code, 1);
      EXPECT_TRUE(contains(outcome.err, fmt::format("error: process {} (", lost))) << outcome.err;
      if (signal == SIGSTOP) processes[lost]->send(SIGKILL);
      if (lost == 1) {
        EXPECT_TRUE(contains(listed(name), " failed "));
      }
      EXPECT_TRUE(contains(output({"checkpoint", "verify", "runs/checkpoints/" + name}), "is whole"));
    }
  }
}

TEST_F(GpuProcessesTest, OneGpuForTwoIsRefused) {
  if (!has_gpus(2)) GTEST_SKIP() << "no 2 GPUs";
  const Strings arguments = on_gpus(train({"train.steps=2"}), 2);
  Program& first = start(0, 2, arguments, {"CUDA_VISIBLE_DEVICES=0"});
  Program& second = start(1, 2, arguments, {"CUDA_VISIBLE_DEVICES=0"});
  for (Program* process : {&first, &second}) {
    const Outcome outcome = process->wait();
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "use the same GPU")) << outcome.err;
  }
}

}  // namespace
}  // namespace nmoe
