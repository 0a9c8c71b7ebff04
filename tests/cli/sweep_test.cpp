// n research sweep, as a user has it: whole, killed and gone on with, with a run that diverges.
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "cli/cli_test.h"

namespace nmoe {
namespace {

using Json = nlohmann::json;

class SweepTest : public CliTest {
 protected:
  SweepTest() { prepare(); }

  void write_sweep(const std::string& rest, const std::string& name = "rates") const {
    write(name + ".toml", "[sweep]\nbase = \"tiny.toml\"\n" + rest);
  }
  // By the name of the run.
  std::map<std::string, Json> status(const std::string& name = "rates") const {
    const Json json = parse_json<Json>(output({"research", "status", name + ".toml", "--json"}));
    std::map<std::string, Json> runs;
    for (const Json& run : json.at("runs")) runs[run.at("name")] = run;
    return runs;
  }
  static std::vector<std::string> command(const std::string& name, const std::string& parallel = "2") {
    return {NMOE_PROGRAM, "research", "sweep", name + ".toml", "--parallel", parallel};
  }
  int64_t count(const std::string& name, const std::string& state) const {
    int64_t count = 0;
    for (const auto& [run, json] : status(name)) count += json.at("state") == state;
    return count;
  }
};

constexpr const char* kRates = R"(seeds = [1, 2]
[sweep.keys]
optim.rest.lr = [1e-3, 1e-2]
[train]
steps = 40
[checkpoint]
every = 5
)";

// kill -9 takes the sweep away; its runs notice, and the same command ends with the same bits.
TEST_F(SweepTest, KilledTwiceItGivesTheSameResults) {
  write_sweep(kRates, "rates");
  write_sweep(kRates, "killed");
  output({"research", "sweep", "rates.toml", "--parallel", "2"});
  for (int kills = 0; kills < 2; ++kills) {
    test::Program program(dir_, command("killed"));
    ASSERT_TRUE(program.wait_for(kills == 0 ? "killed-01-s1: optim" : "killed-0"));
    std::this_thread::sleep_for(std::chrono::milliseconds(kills == 0 ? 150 : 700));
    program.send(SIGKILL);
    EXPECT_EQ(program.wait().exit_code, 128 + SIGKILL);
  }
  EXPECT_LT(count("killed", "done"), 4);
  output({"research", "sweep", "killed.toml", "--parallel", "2"});
  const std::map<std::string, Json> straight = status("rates"), killed = status("killed");
  ASSERT_EQ(straight.size(), 4u);
  for (const auto& [name, run] : straight) {
    EXPECT_EQ(run.at("state"), "done");
    const std::string other = "killed" + name.substr(name.find('-'));
    EXPECT_EQ(killed.at(other).at("state"), "done") << killed.at(other).dump();
    EXPECT_EQ(killed.at(other).at("goal"), run.at("goal"));
    EXPECT_EQ(weights(other), weights(name));
  }
  EXPECT_NE(straight.at("rates-01-s1").at("goal"), straight.at("rates-01-s2").at("goal"));
  // What is finished is not done again.
  EXPECT_FALSE(contains(n({"research", "sweep", "killed.toml"}).err, "optim.rest.lr=0.001\n"));
}

TEST_F(SweepTest, ASignalOrStopEndsItCleanlyAndItGoesOn) {
  write_sweep(
      "[sweep.keys]\noptim.rest.lr = [1e-3, 1e-2]\n[train]\nsteps = 1000000\nstop_on_collapse = "
      "false\n[optim.schedule]\ndecay = 1000000\n");
  for (const bool by_signal : {true, false}) {
    test::Program program(dir_, command("rates"));
    ASSERT_TRUE(program.wait_for("rates-02-s1: "));
    for (const char* run : {"rates-01-s1", "rates-02-s1"}) {  // both have their rows
      const fs::path log = dir_ / "runs/metrics" / run / "train.log";
      for (int i = 0; i < 12'000 && !fs::exists(log); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (by_signal) {
      program.send(SIGINT);
    } else {
      output({"research", "stop", "rates.toml"});
    }
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "not finished; go on with the same command"));
    EXPECT_EQ(count("rates", "interrupted"), 2);
    EXPECT_TRUE(contains(listed("rates-01-s1"), " interrupted "));
  }
  expect_error(n({"research", "stop", "rates.toml"}), 2, "no process is at work", "n research status");
  write_sweep(
      "[sweep.keys]\noptim.rest.lr = [1e-3, 2e-2]\n[train]\nsteps = 1000000\nstop_on_collapse = "
      "false\n[optim.schedule]\ndecay = 1000000\n");
  expect_error(n({"research", "sweep", "rates.toml"}), 2, "run rates-02-s1 of the sweep has another configuration",
               "another sweep.name");
}

TEST_F(SweepTest, ACrashIsTriedAgainAndThenMarked) {
  write_sweep(
      "retries = 1\n[sweep.keys]\noptim.rest.lr = [1e-3]\n[train]\nsteps = 1000000\nstop_on_collapse = false\n"
      "[optim.schedule]\ndecay = 1000000\n");
  test::Program program(dir_, command("rates"));
  const fs::path children = fmt::format("/proc/{}/task/{}/children", program.pid(), program.pid());
  if (!fs::exists(children)) GTEST_SKIP() << "this system does not list children";
  for (const char* told : {"rates-01-s1: optim", "tried again (1 of 1)\nrates-01-s1: optim"}) {
    ASSERT_TRUE(program.wait_for(told));
    ASSERT_EQ(::kill(std::stoi(read_file(children)), SIGKILL), 0);
  }
  EXPECT_EQ(program.wait().exit_code, 0);
  const Json run = status().at("rates-01-s1");
  EXPECT_EQ(run.at("state"), "failed");
  EXPECT_EQ(run.at("reason"), "signal 9");
  EXPECT_EQ(run.at("crashes"), 2);
}

TEST_F(SweepTest, ADivergedRunIsAResult) {
  write_sweep("[sweep.keys]\noptim.rest.lr = [1e-2, 1e30]\n");
  const std::string out = output({"research", "sweep", "rates.toml"});
  EXPECT_TRUE(contains(out, "diverged"));
  const std::map<std::string, Json> runs = status();
  EXPECT_EQ(runs.at("rates-01-s1").at("state"), "done");
  EXPECT_EQ(runs.at("rates-02-s1").at("state"), "diverged");
  EXPECT_EQ(runs.at("rates-02-s1").at("crashes"), 0);
  EXPECT_TRUE(runs.at("rates-02-s1").at("goal").is_null());
}

// Halving ends the worse half at its rung; what goes on has the bits of a run of its own.
TEST_F(SweepTest, HalvingEndsTheWorst) {
  write_sweep("[sweep.halving]\nat = [0.5]\n[sweep.keys]\noptim.rest.lr = [1e-2, 1e-5]\n");
  output({"research", "sweep", "rates.toml", "--parallel", "2"});
  const std::map<std::string, Json> runs = status();
  EXPECT_EQ(runs.at("rates-01-s1").at("state"), "done");
  EXPECT_EQ(runs.at("rates-02-s1").at("state"), "halted");
  EXPECT_EQ(info("runs/checkpoints/rates-02-s1", "step"), "10");
  output(train({"run.name=straight", "optim.rest.lr=1e-2"}));
  EXPECT_EQ(weights("rates-01-s1"), weights("straight"));
}

// The best point is trained with seeds that took no part in choosing it; the ranking stays as it was.
TEST_F(SweepTest, ConfirmsAndReports) {
  write_sweep("seeds = 2\n[sweep.keys]\noptim.rest.lr = [1e-3, 1e-2]\n[train]\nsteps = 10\nstop_on_collapse = false\n");
  const std::string out = output({"research", "sweep", "rates.toml", "--parallel", "2", "--confirm", "1"});
  EXPECT_TRUE(contains(out, "fresh seeds"));
  const Json report = parse_json<Json>(output({"research", "report", "rates.toml", "--json"}));
  ASSERT_EQ(report.at("ranked").size(), 2u);
  const Json& best = report.at("ranked").at(0);
  EXPECT_EQ(best.at("values"), "optim.rest.lr=0.01");
  EXPECT_EQ(best.at("seeds"), Json({1, 2}));
  EXPECT_EQ(best.at("confirming"), 1);
  EXPECT_EQ(best.at("confirmed").at("mean"), status().at("rates-confirm2-s3").at("goal"));
  EXPECT_EQ(report.at("ranked").at(1).at("paired"), 2);
  EXPECT_GT(report.at("ranked").at(1).at("behind_first").at("mean"), 0.0);
  EXPECT_EQ(report.at("at"), 10 * 8 * 16);
  EXPECT_GT(best.at("largest_grad_norm"), 0.0);
  EXPECT_TRUE(contains(output({"research", "report", "rates.toml", "--markdown", "--by", "flops"}), "| ---"));
  const Outcome again = n({"research", "sweep", "rates.toml"});  // without the flag, what confirmed stays
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(contains(again.out, "fresh seeds"));
}

TEST_F(SweepTest, ADryRunOnlySaysWhatItWouldDo) {
  write_sweep("seeds = 2\nbudget = { steps = 60 }\n[sweep.keys]\noptim.rest.lr = [1e-2, 1e-3]\n");
  const std::string out = output({"research", "sweep", "rates.toml", "--dry-run"});
  EXPECT_TRUE(contains(out, "3 runs of 2 points"));
  EXPECT_TRUE(contains(out, "60 steps in all (20 a run)"));
  EXPECT_TRUE(contains(out, "1 further runs are beyond sweep.budget"));
  EXPECT_TRUE(contains(out, "rates-01-s2  optim.rest.lr=0.01  seed 2"));
  EXPECT_FALSE(fs::exists(dir_ / "runs"));
  expect_error(n({"research", "status", "rates.toml"}), 2, "has not begun", "begin it");
}

TEST_F(SweepTest, WhatCannotRunIsRefusedBeforeAnythingDoes) {
  write_sweep("[sweep.keys]\nmodel.num_heads = [2, 3]\nmodel.moe.top_k = [1, 100]\n");
  expect_error(n({"research", "sweep", "rates.toml"}), 2, "run rates-02-s1 (model.num_heads=2 model.moe.top_k=100)",
               "");
  output(train({"run.name=rates-01-s1"}));
  write_sweep("[sweep.keys]\noptim.rest.lr = [1e-2]\n");
  expect_error(n({"research", "sweep", "rates.toml"}), 2, "has a run rates-01-s1 already", "sweep.name");
}

constexpr const char* kSizes = R"([sweep]
base = "tiny.toml"
seeds = 2
[sweep.keys]
model.dim = [16, 24, 32]
model.dense_dim = "= 2 * model.dim"
[ladder]
targets = 48
tokens_per_parameter = 0.2
[optim.schedule]
warmup = "10%"
hold = "rest"
decay = "40%"
[train]
steps = 20
stop_on_collapse = false
)";

// Sizes run first, then the prediction is kept, then the target runs; a kill in between changes none of it.
TEST_F(SweepTest, ALadderPredictsItsTarget) {
  write("sizes.toml", kSizes);
  const std::string plan = output({"research", "ladder", "sizes.toml", "--dry-run"});
  EXPECT_TRUE(contains(plan, "8 runs of 4 points"));
  EXPECT_TRUE(contains(plan, "48, target"));
  EXPECT_TRUE(contains(plan, "batch tokens ^ 0.383"));
  const fs::path kept = dir_ / "runs/sweeps/sizes/prediction.json";
  {
    test::Program program(dir_, {NMOE_PROGRAM, "research", "ladder", "sizes.toml", "--parallel", "2"});
    ASSERT_TRUE(program.wait_for("predicted for model.dim = 48"));
    EXPECT_TRUE(fs::exists(kept));
    program.send(SIGKILL);
    program.wait();
  }
  const std::string before = read_file(kept);
  EXPECT_EQ(count("sizes", "done"), 6);
  const std::string out = output({"research", "ladder", "sizes.toml", "--parallel", "2"});
  EXPECT_EQ(read_file(kept), before);
  EXPECT_TRUE(contains(out, "predicted by the law of FLOPs"));
  const Json report = parse_json<Json>(output({"research", "report", "sizes.toml", "--json"}));
  EXPECT_EQ(report.at("sizes").size(), 6u);
  EXPECT_EQ(report.at("laws").size(), 3u);
  const Json& target = report.at("targets").at(0);
  const std::map<std::string, Json> runs = status("sizes");
  const double measured =
      (runs.at("sizes-04-s1").at("goal").get<double>() + runs.at("sizes-04-s2").at("goal").get<double>()) / 2;
  EXPECT_DOUBLE_EQ(target.at("measured").get<double>(), measured);
  EXPECT_DOUBLE_EQ(target.at("error").get<double>(), target.at("loss").get<double>() / measured - 1.0);
  EXPECT_GT(target.at("tokens"), report.at("sizes").at(0).at("tokens"));
  // By the laws: rates of the run are the base's by the root of what its batch is of the base's.
  const Json run = parse_json<Json>(output({"runs", "show", "sizes-04-s1", "--json"})).at("config");
  EXPECT_NEAR(run.at("optim.rest.lr").get<double>(), 1e-2 * std::sqrt(run.at("train.batch_seqs").get<double>() / 8.0),
              1e-9);
  EXPECT_TRUE(contains(output({"research", "report", "sizes.toml", "--markdown"}), "| naive"));
  expect_error(n({"research", "sweep", "sizes.toml"}), 2, "it is a ladder", "n research ladder sizes.toml");
}

TEST_F(SweepTest, ALadderOfSeveralLengthsKnowsTheBestOne) {
  std::string grid = kSizes;
  grid.replace(grid.find("tokens_per_parameter = 0.2"), 26,
               "tokens_per_parameter = [0.1, 0.2]\ntarget_tokens_per_parameter = 0.2");
  grid.replace(grid.find("seeds = 2"), 9, "seeds = 1");
  write("sizes.toml", grid);
  EXPECT_TRUE(contains(output({"research", "ladder", "sizes.toml", "--parallel", "2"}),
                       "predicted by the law of parameters and tokens"));
  EXPECT_EQ(count("sizes", "done"), 7);
}

TEST_F(SweepTest, WhatIsNoLadderIsRefused) {
  std::string counts = kSizes;
  for (const char* share : {"\"10%\"", "\"rest\"", "\"40%\""})
    counts.replace(counts.find(share), std::strlen(share), "10");
  write("sizes.toml", counts);
  expect_error(n({"research", "ladder", "sizes.toml"}), 2, "optim.schedule has lengths in counts", "write shares");
  std::string laws = kSizes;
  write("sizes.toml", laws + "[ladder.laws]\nrate = \"layers\"\n");
  expect_error(n({"research", "ladder", "sizes.toml"}), 2, "ladder.laws.rate: \"layers\" names layers", "width, batch");
  write_sweep("[sweep.keys]\noptim.rest.lr = [1e-2]\n");
  expect_error(n({"research", "ladder", "rates.toml"}), 2, "there is no [ladder]", "n research sweep");
}

}  // namespace
}  // namespace nmoe
