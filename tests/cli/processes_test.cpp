// Runs of several processes: what they compute, how they are started, and how they end together.
#include "cli/processes.h"

#include <thread>

namespace nmoe {
namespace {

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

// Replicas of experts in two processes: added in fp32 in the order of processes, rounded once.
TEST_F(ProcessesTest, GradientsInBf16AreSummedOverProcesses) {
  const auto named = [](const std::string& name) {
    return with_ranks(train({"run.name=" + name, "train.gradients=bf16", "parallel.rebalance_every=0"}), 4);
  };
  const double expected = validation_loss(output(named("halves_threads")));
  EXPECT_NEAR(validation_loss(run_two(named("halves"))), expected, 2e-3 * expected);
  run_two(named("halves_again"));
  EXPECT_EQ(weights("halves"), weights("halves_again"));
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

// Whether the process has a handler for the signal, of which its parent need not know otherwise.
bool hears(const Program& program, int signal) {
  const std::string status = read_file(fmt::format("/proc/{}/status", program.pid()));
  const size_t caught = status.find("SigCgt:");
  return caught != std::string::npos && (std::stoull(status.substr(caught + 7), nullptr, 16) >> (signal - 1) & 1) != 0;
}
void wait_until_heard(const Program& program, int signal) {
  for (int i = 0; i < 10'000 && !hears(program, signal); ++i) std::this_thread::sleep_for(1ms);
}

// Before the first step, too: where processes still meet, read their data, or make their models.
TEST_F(ProcessesTest, ASignalBeforeTheFirstStepStopsAll) {
  int number = 0;
  for (const auto delay : {0ms, 20ms, 60ms, 120ms, 250ms, 500ms}) {
    for (const int asked : {0, 1}) {
      Strings arguments = endless(2);
      arguments.insert(arguments.end(), {"--set", fmt::format("run.name=early{}", ++number)});
      Program* processes[] = {&start(0, 2, arguments), &start(1, 2, arguments)};
      wait_until_heard(*processes[asked], SIGTERM);
      std::this_thread::sleep_for(delay);
      processes[asked]->send(SIGTERM);
      for (Program* process : processes) {
        const Outcome outcome = process->wait();
        EXPECT_EQ(outcome.exit_code, 0) << asked << " after " << delay.count() << " ms: " << outcome.err;
        EXPECT_FALSE(contains(outcome.err, "crashed")) << outcome.err;
      }
      EXPECT_TRUE(contains(listed(fmt::format("early{}", number)), "stopped by SIGTERM"));
    }
  }
}

// Whom nobody joins waits no longer than seconds.
TEST_F(ProcessesTest, ASignalEndsTheWaitForOthers) {
  for (const int process : {0, 1}) {
    Program& alone = start(process, 2, endless(2));
    wait_until_heard(alone, SIGTERM);
    std::this_thread::sleep_for(300ms);
    const auto since = std::chrono::steady_clock::now();
    alone.send(SIGTERM);
    const Outcome outcome = alone.wait();
    EXPECT_LT(std::chrono::steady_clock::now() - since, 30s);
    expect_error(outcome, 1, "after SIGTERM", "");
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
    EXPECT_LT(std::chrono::steady_clock::now() - since, 60s);
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

TEST_P(LostProcessTest, KilledEndsAll) {
  expect_reason(end_by(SIGKILL), "ended without saying why: it was killed");
  lost_->wait();  // or its number would be that of a process
  const int64_t step = std::stoll(info("runs/checkpoints/tiny", "step"));
  Strings arguments = with_ranks(resume({fmt::format("train.steps={}", step + 2), "optim.schedule.floor=1e-4"}), 3);
  arguments.insert(arguments.end(), {"--set", "train.batch_seqs=6", "--set", "train.microbatch_seqs=2"});
  EXPECT_TRUE(contains(output(arguments), fmt::format("step_{:08}", step + 2)));
}

TEST_P(LostProcessTest, StoppedEndsAll) {
  expect_reason(end_by(SIGSTOP), "has not answered for 5 s: it was stopped");
  // Going on, it learns that nobody waits for it any more.
  lost_->send(SIGCONT);
  const Outcome outcome = lost_->wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(contains(outcome.err, fmt::format("process {} (", GetParam())));
}

// The disk of one rank is full from its first write on: training goes on, what is lost is told, and the run ends with
// an error and its last whole checkpoint, as threads and as processes.
TEST_F(ProcessesTest, ADiskThatFillsOnOneRank) {
  write("count", std::string(8, '\0'));
  const Strings layer = {"LD_PRELOAD=" NMOE_FAULT_LAYER,
                         "NMOE_FAULT_ROOT=" + dir_.string(),
                         "NMOE_FAULT_COUNT=" + (dir_ / "count").string(),
                         "NMOE_FAULT_MATCH=.rank_00001.",
                         "NMOE_FAULT_AT=1",
                         "NMOE_FAULT_KIND=full"};
  const auto steps = [](const std::string& name, int count, bool resumed) {
    return with_ranks(train({"run.name=" + name, fmt::format("train.steps={}", count), "checkpoint.every=3"}, resumed),
                      2);
  };
  output(steps("threads", 8, false));
  for (const bool processes : {false, true}) {
    const std::string name = processes ? "processes" : "thread";
    processes ? run_two(steps(name, 4, false)) : output(steps(name, 4, false));
    Outcome outcome;
    if (processes) {
      Program& first = start(0, 2, steps(name, 8, true));
      outcome = start(1, 2, steps(name, 8, true), layer).wait();
      EXPECT_EQ(outcome.exit_code, 1);
      outcome = first.wait();
    } else {
      Strings command = {"env"};
      command.insert(command.end(), layer.begin(), layer.end());
      command.emplace_back(NMOE_PROGRAM);
      const Strings arguments = steps(name, 8, true);
      command.insert(command.end(), arguments.begin(), arguments.end());
      outcome = Program(dir_, command).wait();
    }
    expect_error(outcome, 1, "the weights after step 8 are not saved: rank 1: ", "--resume");
    EXPECT_TRUE(contains(outcome.err, "warning: the checkpoint of step 6 is not written: rank 1: "));
    EXPECT_TRUE(contains(outcome.err, "No space left on device"));
    EXPECT_TRUE(contains(listed(name), "not saved: rank 1: "));
    EXPECT_EQ(std::stoll(info("runs/checkpoints/" + name, "step")), 4);
    processes ? run_two(steps(name, 8, true)) : output(steps(name, 8, true));
  }
  EXPECT_EQ(weights("thread"), weights("threads"));
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
  const std::string connected = fmt::format("until (exec 3<>/dev/tcp/127.0.0.1/{}); do sleep 0.01; done", port_);
  EXPECT_EQ(Program(dir_, {"bash", "-c", connected}).wait().exit_code, 0);
  expect_error(start(0, 2, endless(2)).wait(), 1, fmt::format("process 0 cannot listen at 127.0.0.1:{}", port_),
               "MASTER_PORT");
}

}  // namespace
}  // namespace nmoe
