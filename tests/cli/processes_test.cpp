// Runs of several processes: what they compute, how they are started, and how they end together.
#include <chrono>
#include <csignal>
#include <list>

#include "cli/cli_test.h"
#include "support/free_port.h"

namespace nmoe {
namespace {

using test::Program;
using namespace std::chrono_literals;

using Strings = std::vector<std::string>;

class ProcessesTest : public CliTest {
 protected:
  ProcessesTest() { prepare(); }

  // Process `process` of `count`; `variables` are added to what a launcher sets.
  Program& start(int process, int count, const Strings& arguments, const Strings& variables = {}) {
    Strings command = {"env",
                       "-u",
                       "NMOE_SECRET",
                       "-u",
                       "NMOE_SECRET_FILE",
                       fmt::format("RANK={}", process),
                       fmt::format("WORLD_SIZE={}", count),
                       "MASTER_ADDR=127.0.0.1",
                       fmt::format("MASTER_PORT={}", port_)};
    command.insert(command.end(), variables.begin(), variables.end());
    command.emplace_back(NMOE_PROGRAM);
    command.insert(command.end(), arguments.begin(), arguments.end());
    return programs_.emplace_back(dir_, command);
  }

  static Strings with_ranks(Strings arguments, int ranks, int batch = 8) {
    arguments.insert(arguments.end(),
                     {"--ranks", fmt::format("{}", ranks), "--set",
                      fmt::format("train.microbatch_seqs={}", batch / ranks), "--set", "model.moe.num_experts=12"});
    return arguments;
  }
  // A run too long to end by itself, on a rank a process.
  static Strings endless(int processes) {
    return with_ranks(train({"train.steps=1000000", "train.log_every=1", "optim.schedule.floor=1e-4"}), processes);
  }

  // Runs two processes to their good end; only the first says anything, which is returned.
  std::string run_two(const Strings& arguments) {
    Program &first = start(0, 2, arguments), &second = start(1, 2, arguments);
    const Outcome outcome = first.wait(), other = second.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "checkpoint runs/checkpoints/"));
    EXPECT_EQ(other.exit_code, 0) << other.err;
    EXPECT_EQ(other.out, "");
    EXPECT_EQ(other.err, "");
    return outcome.out;
  }

  // The one that a run ends with.
  static double validation_loss(const std::string& text) {
    constexpr std::string_view kLabel = "validation loss ";
    const size_t found = text.rfind(kLabel);
    EXPECT_NE(found, std::string::npos) << text;
    return found == std::string::npos ? 0.0 : std::stod(text.substr(found + kLabel.size()));
  }

  int port_ = test::free_port();
  std::list<Program> programs_;
};

// Each process has all experts among its ranks: sums over tokens have another order than among the threads of one.
TEST_F(ProcessesTest, LearnWhatThreadsDoAndTheSameEveryTime) {
  for (const int ranks : {2, 4}) {
    const Strings settings = {"train.steps=8", "train.valid_every=3", "checkpoint.every=5"};
    const auto named = [&](const std::string& name) {
      Strings all = settings;
      all.push_back(fmt::format("run.name={}{}", name, ranks));
      return with_ranks(train(all), ranks);
    };
    const double expected = validation_loss(output(named("threads")));
    EXPECT_NEAR(validation_loss(run_two(named("processes"))), expected, 1e-3 * expected);
    run_two(named("again"));
    EXPECT_EQ(weights(fmt::format("processes{}", ranks)), weights(fmt::format("again{}", ranks)));
    EXPECT_TRUE(contains(listed(fmt::format("processes{}", ranks)), " completed "));
  }
}

TEST_F(ProcessesTest, LogicalShardsAreForOneProcess) {
  const Strings arguments = with_ranks(train({"parallel.logical_shards=2"}), 2);
  Program &first = start(0, 2, arguments), &second = start(1, 2, arguments);
  for (Program* process : {&first, &second}) {
    const Outcome outcome = process->wait();
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "parallel.logical_shards is for the ranks of one process"));
  }
}

TEST_F(ProcessesTest, ResumeAnotherNumberOfProcesses) {
  const auto steps = [](const std::string& name, int count, bool resumed) {
    return with_ranks(train({"run.name=" + name, fmt::format("train.steps={}", count)}, resumed), 4);
  };
  const double straight = validation_loss(output(steps("straight", 9, false)));
  run_two(steps("fewer", 4, false));
  EXPECT_NEAR(validation_loss(output(steps("fewer", 9, true))), straight, 1e-3 * straight);
  output(steps("more", 4, false));
  EXPECT_NEAR(validation_loss(run_two(steps("more", 9, true))), straight, 1e-3 * straight);
  run_two(steps("whole", 9, false));
  run_two(steps("halves", 4, false));
  run_two(steps("halves", 9, true));
  EXPECT_EQ(weights("halves"), weights("whole"));
}

TEST_F(ProcessesTest, ASignalToAnyStopsAllWithACheckpoint) {
  for (const int asked : {0, 1}) {
    const std::string name = fmt::format("asked{}", asked);
    Strings arguments = endless(2);
    arguments.insert(arguments.end(), {"--set", "run.name=" + name});
    Program* processes[] = {&start(0, 2, arguments), &start(1, 2, arguments)};
    ASSERT_TRUE(processes[0]->wait_for("train step 3/")) << processes[0]->errors() << processes[1]->errors();
    processes[asked]->send(SIGTERM);
    const Outcome first = processes[0]->wait(), second = processes[1]->wait();
    EXPECT_EQ(first.exit_code, 0) << first.err;
    EXPECT_EQ(second.exit_code, 0) << second.err;
    EXPECT_TRUE(contains(first.out, "stopped after step "));
    EXPECT_TRUE(contains(listed(name), "stopped by SIGTERM"));
    EXPECT_TRUE(contains(output({"checkpoint", "verify", "runs/checkpoints/" + name}), "is whole"));
  }
}

// ---- failures ----------------------------------------------------------------------------------

class LostProcessTest : public ProcessesTest, public ::testing::WithParamInterface<int> {
 protected:
  // Three processes, of which the one is sent `signal` while it runs; returns how the others end.
  std::vector<Outcome> end_by(int signal) {
    Strings arguments = endless(3);
    arguments.insert(arguments.end(), {"--set", "train.batch_seqs=6", "--set", "train.microbatch_seqs=2", "--set",
                                       "checkpoint.every=2"});
    for (int process = 0; process < 3; ++process) start(process, 3, arguments);
    auto program = programs_.begin();
    EXPECT_TRUE(program->wait_for("train step 5/")) << program->errors();
    lost_ = &*std::next(program, GetParam());
    const auto since = std::chrono::steady_clock::now();
    lost_->send(signal);
    std::vector<Outcome> outcomes;
    for (Program& other : programs_) {
      if (&other != lost_) outcomes.push_back(other.wait());
    }
    EXPECT_LT(std::chrono::steady_clock::now() - since, 10s);
    return outcomes;
  }
  void expect_reason(const std::vector<Outcome>& outcomes, const std::string& how) const {
    const std::string reason = fmt::format(", rank {}) {}", GetParam(), how);
    for (const Outcome& outcome : outcomes) {
      expect_error(outcome, 1, fmt::format("error: process {} (", GetParam()), "--resume");
      expect_error(outcome, 1, reason, "--resume");
    }
    // Where process 0 is not the one that is lost, it has said why.
    if (GetParam() > 0) {
      EXPECT_TRUE(contains(listed("tiny"), " failed "));
      EXPECT_TRUE(contains(listed("tiny"), fmt::format("process {} (", GetParam())));
    }
    EXPECT_TRUE(contains(output({"checkpoint", "verify", "runs/checkpoints/tiny"}), "is whole"));
  }

  Program* lost_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Of3, LostProcessTest, ::testing::Values(0, 1));

TEST_P(LostProcessTest, KilledEndsAll) { expect_reason(end_by(SIGKILL), "ended without a word: it was killed"); }

TEST_P(LostProcessTest, StoppedEndsAll) {
  expect_reason(end_by(SIGSTOP), "has not answered for 5 s: it was stopped");
  // Going on, it learns that nobody waits for it any more.
  lost_->send(SIGCONT);
  const Outcome outcome = lost_->wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(contains(outcome.err, fmt::format("process {} (", GetParam())));
}

TEST_F(ProcessesTest, WhatFailsInOneEndsAll) {
  const Strings arguments = endless(2);
  Strings elsewhere = arguments;
  elsewhere.insert(elsewhere.end(), {"--set", "data.path=nowhere"});
  Program &first = start(0, 2, arguments), &second = start(1, 2, elsewhere);
  expect_error(second.wait(), 2, "nowhere", "");
  const Outcome outcome = first.wait();
  expect_error(outcome, 1, "rank 1 failed: ", "");
  EXPECT_TRUE(contains(outcome.err, "nowhere"));
}

// Without a file system in common, a process would begin anew where others go on.
TEST_F(ProcessesTest, AllStartFromOneCheckpoint) {
  output(with_ranks(train({"train.steps=3"}), 2));
  const Strings arguments = with_ranks(resume({"train.steps=6"}), 2);
  Strings elsewhere = arguments;
  elsewhere.insert(elsewhere.end(), {"--set", "run.dir=others"});
  Program &first = start(0, 2, arguments), &second = start(1, 2, elsewhere);
  for (Program* program : {&first, &second}) {
    const Outcome outcome = program->wait();
    expect_error(outcome, 1, "rank 0 goes on from step 3 of run_", "file system that their hosts share");
    EXPECT_TRUE(contains(outcome.err, ", rank 1 from step 0 of a new run"));
  }
}

TEST_F(ProcessesTest, WhoIsMissingIsNamed) {
  Strings arguments = endless(2);
  arguments.insert(arguments.end(), {"--set", "parallel.timeout_s=1"});
  Program& first = start(0, 2, arguments);
  expect_error(first.wait(), 1, fmt::format("process 1 of 2 did not come to 127.0.0.1:{} within 1 s", port_),
               "parallel.timeout_s");
  Program& second = start(1, 2, arguments);
  expect_error(second.wait(), 1, fmt::format("process 1 could not reach process 0 at 127.0.0.1:{}", port_),
               "MASTER_PORT");
}

TEST_F(ProcessesTest, WhoDoesNotBelongIsRefusedAndTheRunGoesOn) {
  const Strings good = {"NMOE_SECRET=known to all of them"}, bad = {"NMOE_SECRET=known to another run"};
  const Strings arguments = with_ranks(train({"train.steps=3"}), 2);
  Program& first = start(0, 2, arguments, good);
  expect_error(start(1, 2, arguments, bad).wait(), 2, "its secret is not that of process 0", "NMOE_SECRET");
  expect_error(start(1, 2, arguments).wait(), 2, "its secret is not that of process 0", "NMOE_SECRET");
  Strings other = arguments;
  other.insert(other.end(), {"--set", "optim.rest.lr=1e-3"});
  expect_error(start(1, 2, other, good).wait(), 2, "\"optim.rest.lr=0.001\" there, \"optim.rest.lr=0.01\" in process 0",
               "the same configuration");
  Program& second = start(1, 2, arguments, good);
  EXPECT_EQ(second.wait().exit_code, 0);
  EXPECT_EQ(first.wait().exit_code, 0);
}

TEST_F(ProcessesTest, WhatCannotBeIsRefusedAtOnce) {
  expect_error(start(0, 2, with_ranks(train({}), 1)).wait(), 2, "parallel.ranks = 1 cannot be shared equally by 2",
               "a multiple of 2");
  expect_error(start(2, 2, endless(2)).wait(), 2, "RANK is \"2\"", "launcher");
  expect_error(start(0, 2, endless(2), {"MASTER_ADDR=192.0.2.1"}).wait(), 2, "there is no secret", "NMOE_SECRET");
  Program& taken = start(0, 2, endless(2));
  ASSERT_TRUE(taken.wait_for("is met at"));
  std::this_thread::sleep_for(200ms);
  expect_error(start(0, 2, endless(2)).wait(), 1, fmt::format("process 0 cannot listen at 127.0.0.1:{}", port_),
               "MASTER_PORT");
}

}  // namespace
}  // namespace nmoe
