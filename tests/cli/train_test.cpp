// Training runs from start to end or failure. Interrupted ones are in interruption_test.cpp.
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

class TrainCommandTest : public CliTest {
 protected:
  TrainCommandTest() { prepare(); }
};

TEST_F(TrainCommandTest, FromTextToAParagraph) {
  const Outcome outcome = n(train({"train.steps=12", "train.log_every=5", "train.valid_every=5"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "12 steps in "));
  EXPECT_TRUE(contains(outcome.out, "validation loss "));
  EXPECT_TRUE(contains(outcome.out, "checkpoint runs/checkpoints/tiny/step_00000012\n"));

  // The plan comes first. Plain lines, not a bar: standard error is no terminal here.
  EXPECT_TRUE(contains(outcome.err, "FLOP per token"));
  EXPECT_EQ(outcome.err.find('\r'), std::string::npos);
  EXPECT_EQ(outcome.err.find('\033'), std::string::npos);
  std::string logged;
  for (size_t at = outcome.err.find("train step "); at != std::string::npos;
       at = outcome.err.find("train step ", at + 1)) {
    const size_t step = at + std::string("train step ").size();
    logged += outcome.err.substr(step, outcome.err.find(' ', step) - step) + " ";
    EXPECT_TRUE(at == 0 || outcome.err[at - 1] == '\n');
  }
  EXPECT_EQ(logged, "1/12 5/12 10/12 12/12 ");
  EXPECT_TRUE(contains(outcome.err, "step 5: validation loss "));

  EXPECT_TRUE(contains(listed("tiny"), " completed "));
  EXPECT_TRUE(contains(listed("tiny"), " 12 "));
  EXPECT_TRUE(contains(output({"checkpoint", "verify", "runs/checkpoints/tiny"}), "is whole"));
  // The configuration in the checkpoint is the run's.
  const std::string config = output({"config", "runs/checkpoints/tiny/step_00000012/config.toml"});
  EXPECT_TRUE(contains(config, "# fingerprint " + info("runs/checkpoints/tiny", "config")));

  const std::vector<std::string> generate = {
      "generate", "runs/checkpoints/tiny", "--prompt", "the cat ", "--max-tokens", "30", "--seed", "3"};
  const std::string text = output(generate);
  EXPECT_TRUE(text.starts_with("the cat ")) << text;
  EXPECT_EQ(output(generate), text);
}

TEST_F(TrainCommandTest, ACorpusWithoutValidationIsToldOf) {
  EXPECT_FALSE(contains(output({"plan", "tiny.toml"}), "validation split"));
  EXPECT_TRUE(
      contains(output({"prep", "train.txt", "--out", "alone"}), "no split: training will report no validation"));
  const std::string note =
      "note: 'alone' has no validation split, the run reports no validation loss: n prep makes one";
  EXPECT_TRUE(contains(output({"plan", "tiny.toml", "--set", "data.path=alone"}), note));
  const Outcome outcome = n(train({"train.steps=1", "data.path=alone"}));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(contains(outcome.err, note));
  EXPECT_FALSE(contains(outcome.out, "validation loss"));
}

TEST_F(TrainCommandTest, ANameIsTakenOnce) {
  output(train({"train.steps=1"}));
  const std::string before = weights("tiny");
  expect_error(n(train({"train.steps=2"})), 2, "already holds checkpoints", "--resume");
  const Outcome outcome = n(resume({"train.steps=1"}));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(contains(outcome.out, "nothing to do: 1 steps are done"));
  EXPECT_EQ(weights("tiny"), before);
}

TEST_F(TrainCommandTest, ResumeWantsTheSameConfigurationAndCorpus) {
  output(train({"train.steps=1"}));
  const Outcome outcome = n(resume({"train.steps=2", "optim.experts.lr=0.5"}));
  expect_error(outcome, 2, "the configuration is not the one that runs/checkpoints/tiny/step_", "undo these changes");
  EXPECT_TRUE(contains(outcome.err, "\noptim.experts.lr: 0.01 != 0.5\nremedy: "));
  output({"prep", "valid.txt", "--out", "other"});
  expect_error(n(resume({"train.steps=2", "data.path=other"})), 2,
               "the data of other is not what runs/checkpoints/tiny/step_", "data.path");
  // Where a run stops, what it is called and how often it reports may change.
  output(resume({"train.steps=2", "run.experiment=other", "checkpoint.every=1"}));
}

// Steps at a rate of 0 would learn nothing.
TEST_F(TrainCommandTest, NoStepIsTrainedBeyondTheSchedule) {
  const std::string schedule = "optim.schedule.decay=3";  // 5 + 10 + 3 steps
  expect_error(n(train({schedule})), 2, "train.steps = 20, but the learning rate is 0 from step 19 on",
               "set train.steps = 18");
  EXPECT_FALSE(fs::exists(dir_ / "runs"));
  output(train({schedule, "train.steps=18"}));
  expect_error(n(resume({schedule, "train.steps=20"})), 2, "train.steps = 20, but the learning rate is 0 from step 19",
               "as another run: another run.name, and this one's checkpoints as model.init.from");
  output(train({schedule, "optim.schedule.floor=1e-4", "run.name=held"}));
  output(train({"run.name=second", "model.init.from=runs/checkpoints/tiny"}));
}

// A schedule in shares is of the length that the run first had, however it goes on.
TEST_F(TrainCommandTest, SharesOfAScheduleStayAsTheyWere) {
  prepare();
  const auto shares = [](const std::string& name, const std::string& steps) {
    return std::vector<std::string>{"run.name=" + name, "optim.schedule.warmup=25%", "optim.schedule.hold=rest",
                                    "optim.schedule.decay=50%", "train.steps=" + steps};
  };
  output(train(shares("whole", "8")));
  output(train({"run.name=counts", "optim.schedule.warmup=2", "optim.schedule.hold=2", "optim.schedule.decay=4",
                "train.steps=8"}));
  EXPECT_EQ(weights("whole"), weights("counts"));
  std::vector<std::string> cut = shares("cut", "4");
  cut.emplace_back("optim.schedule.length=8");
  output(train(cut));
  output(resume(shares("cut", "8")));
  EXPECT_EQ(weights("cut"), weights("whole"));
  expect_error(n(resume(shares("cut", "9"))), 2, "optim.schedule ends after 8 steps (warmup 2 + hold 2 + decay 4)",
               "a run keeps its schedule");
  std::vector<std::string> other = shares("cut", "8");
  other[1] = "optim.schedule.warmup=50%";
  expect_error(n(resume(other)), 2, "is not the one that", "undo these changes");
}

// At its base a rule changes no bit, beside it all.
TEST_F(TrainCommandTest, ARuleAtItsBaseIsNone) {
  prepare();
  const std::vector<std::string> few = {"train.steps=3", "optim.schedule.warmup=1"};
  const auto with = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), few.begin(), few.end());
    output(train(settings));
  };
  with({"run.name=none"});
  for (const std::string rule : {"mup", "completep"}) {
    with({"run.name=" + rule, "model.scaling.rule=" + rule, "model.scaling.base.dim=16"});
    EXPECT_EQ(weights(rule), weights("none"));
  }
  with({"run.name=wider", "model.scaling.rule=mup", "model.scaling.base.dim=8"});
  EXPECT_NE(weights("wider"), weights("none"));
  // A checkpoint keeps the rule, with which training goes on.
  with({"run.name=further", "model.init.from=runs/checkpoints/wider"});
  EXPECT_TRUE(contains(read_file(dir_ / "runs/checkpoints/further/step_00000003/config.toml"), "rule = \"mup\""));
  // Which is said. The weights are of no rule: another, or none, may be how they are trained from there.
  EXPECT_TRUE(contains(n(train({"run.name=said", "model.init.from=runs/checkpoints/wider", "train.steps=1"})).err,
                       "rates, decays and epsilon are the base model's, times factors of each weight"));
  with({"run.name=freed", "model.init.from=runs/checkpoints/wider", "model.scaling.rule=none"});
  EXPECT_NE(weights("freed"), weights("further"));
  output({"export", "runs/checkpoints/wider", "exported"});
}

TEST_F(TrainCommandTest, ALossThatIsNotFinite) {
  const Outcome outcome = n(train({"optim.rest.lr=1e30", "optim.schedule.warmup=0"}));
  expect_error(outcome, 1, "first bad tensor: layers.0.", "the weights after step 1 are kept");
  EXPECT_TRUE(contains(listed("tiny"), " failed_nan "));
  EXPECT_TRUE(contains(listed("tiny"), "first bad tensor: layers.0."));
  EXPECT_EQ(info("runs/checkpoints/tiny", "step"), "1");
}

TEST_F(TrainCommandTest, RefusesMoreThanItMayTake) {
  expect_error(n(train({"train.memory_limit=1 MiB"})), 2, "train.memory_limit is 1.00 MiB", "raise train.memory_limit");
  EXPECT_FALSE(fs::exists(dir_ / "runs"));
}

// Where activations are most of it, and where weights are; with texts that the model writes, too.
TEST_F(TrainCommandTest, TakesWhatThePlanSays) {
  struct Case {
    int64_t dim, batch_seqs, ranks, threads;
    bool writes = false;
  };
  for (const Case& c : {Case{64, 128, 1, 2},
                        {64, 128, 2, 2},
                        {256, 8, 1, 2},
                        {256, 8, 1, 2, true},
                        {256, 8, 2, 2},
                        {512, 2, 1, 1},
                        {512, 2, 1, 1, true}}) {
    const std::string name = fmt::format("{}_{}_{}{}", c.dim, c.ranks, c.threads, c.writes ? "_writes" : "");
    const Outcome outcome = n(
        train({fmt::format("model.dim={}", c.dim), fmt::format("model.dense_dim={}", 4 * c.dim),
               fmt::format("model.moe.expert_dim={}", c.dim), "train.steps=2", "data.seq_len=256",
               fmt::format("train.batch_seqs={}", c.batch_seqs),
               fmt::format("train.microbatch_seqs={}", c.batch_seqs / c.ranks),
               fmt::format("parallel.ranks={}", c.ranks), fmt::format("run.threads={}", c.threads), "run.name=" + name,
               c.writes ? R"(train.sample_prompts=["the old", "a cat", "it"])" : "train.steps=2"}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const size_t total = outcome.err.find("  total ");
    ASSERT_NE(total, std::string::npos) << outcome.err;
    const std::string planned = outcome.err.substr(total + 8, outcome.err.find("MiB", total) - total - 8);
    const double ratio = static_cast<double>(outcome.peak_resident_bytes) / (std::stod(planned) * (1 << 20));
    EXPECT_LE(std::abs(ratio - 1.0), 0.02) << "planned " << planned << "MiB for " << name;
    EXPECT_EQ(outcome.err.find("of 2 ranks") != std::string::npos, c.ranks == 2);
  }
}

TEST_F(TrainCommandTest, RanksShareABatchEqually) {
  const std::string plan = output({"plan", "tiny.toml", "--ranks", "2"});
  EXPECT_TRUE(contains(plan, "of 2 ranks in this process"));
  // 64 tokens go to the other rank with chance 1 - 3 * 2 / (6 * 5): rows of 64 bytes four times, 2 slots, 2 weights
  // twice.
  EXPECT_TRUE(contains(plan, "puts 14.00 KiB to others, 14.00 KiB a layer with experts: 0.80 ranks a token")) << plan;
  expect_error(n({"train", "tiny.toml", "--ranks", "3"}), 2, "every rank takes an equal share of a batch", "");
  expect_error(n(train({"parallel.ranks=3"})), 2, "every rank takes an equal share of a batch",
               "let parallel.ranks * train.microbatch_seqs divide train.batch_seqs");
  expect_error(n(train({"parallel.logical_shards=4"})), 2, "a logical shard is a microbatch of its batch",
               "let train.batch_seqs be parallel.logical_shards * train.microbatch_seqs");
}

// A limit on the size of files stands for a full disk.
TEST_F(TrainCommandTest, ACheckpointThatCannotBeWritten) {
  rlimit whole{};
  getrlimit(RLIMIT_FSIZE, &whole);
  rlimit limit = whole;
  limit.rlim_cur = 2'000'000;  // more than the metrics take, less than the weights
  setrlimit(RLIMIT_FSIZE, &limit);
  const Outcome outcome = n(train({"train.steps=1", "model.dense_dim=16384"}));
  const Outcome on_ranks =
      n(train({"train.steps=3", "checkpoint.every=1", "model.dense_dim=16384", "parallel.ranks=2", "run.name=ranks"}));
  setrlimit(RLIMIT_FSIZE, &whole);

  expect_error(outcome, 1, "cannot write 'runs/checkpoints/tiny/", "raise the file size limit");
  expect_error(on_ranks, 1, "cannot write 'runs/checkpoints/ranks/", "");
  EXPECT_TRUE(contains(outcome.err, "the weights after step 1 are not saved"));
  EXPECT_TRUE(contains(on_ranks.err, "warning: the checkpoint of step 1 is not written: rank 0: cannot write"));
  for (const char* name : {"tiny", "ranks"}) {
    EXPECT_TRUE(contains(listed(name), " failed "));
    EXPECT_TRUE(contains(listed(name), "cannot write"));
    EXPECT_FALSE(fs::exists(dir_ / "runs/checkpoints" / name));
  }
}

TEST_F(TrainCommandTest, MetricsThatCannotBeWritten) {
  make_directories(dir_ / "runs");
  write("runs/metrics", "a file where a folder should be");
  expect_error(n(train({"train.steps=1"})), 1, "runs/metrics", "");
  EXPECT_TRUE(contains(listed("tiny"), " failed "));
  EXPECT_TRUE(contains(listed("tiny"), "runs/metrics"));
}

TEST_F(TrainCommandTest, SaysThatARouterStaysFarFromBalance) {
  // Two of eight experts get all tokens: the others' scores are equal, and nothing changes that.
  const auto uneven = [&](int64_t steps) {
    return n(
        train({fmt::format("train.steps={}", steps), "model.moe.num_experts=8", "model.moe.bias_rate=0",
               "model.moe.balance_loss=0", "model.init.router_std=0", "optim.router.lr=0", "train.log_every=50",
               "train.stop_on_collapse=false", "optim.schedule.hold=500", fmt::format("run.name=steps{}", steps)}));
  };
  const Outcome short_run = uneven(150);
  EXPECT_EQ(short_run.exit_code, 0) << short_run.err;
  EXPECT_FALSE(contains(short_run.err, "far from balance"));
  const Outcome outcome = uneven(250);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "step 200: the router of layer 1 is far from balance")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "raise model.moe.balance_loss (0) or lower optim.router.lr (0)"));
  EXPECT_FALSE(contains(outcome.err, "step 250: the router"));
}

TEST_F(TrainCommandTest, BenchCountsTheSameModel) {
  const auto bench =
      nlohmann::json::parse(output({"bench", "train", "tiny.toml", "--steps", "2", "--warmup", "1", "--json"}));
  EXPECT_EQ(bench["steps"], 2);
  EXPECT_EQ(bench["tokens"], "the corpus");
  EXPECT_EQ(bench["tokens_per_step"], 128);
  EXPECT_EQ(bench["microbatches"], 2);
  const double rate = bench["tokens_per_s"];
  EXPECT_NEAR(rate, 1e3 * 128 / bench["ms_per_step"].get<double>(), 1e-6 * rate);
  const double flops = bench["flops_per_token"];
  EXPECT_NEAR(bench["mfu"].get<double>() * bench["peak_gflops"].get<double>() * 1e9, flops * rate, 1e-6 * flops * rate);
  EXPECT_GT(flops, 6.0 * bench["active_matrix_parameters"].get<double>());
  EXPECT_GT(bench["first_step_s"], 0.0);
  for (const auto& [mean, each] : {std::pair{"load_max_over_mean", "loads"}, {"loss", "losses"}}) {
    const auto values = bench[each].get<std::vector<double>>();
    ASSERT_EQ(values.size(), 2u) << each;
    EXPECT_GE(std::min(values[0], values[1]), 1.0) << each;
    EXPECT_DOUBLE_EQ(bench[mean].get<double>(), (values[0] + values[1]) / 2) << each;
  }
  EXPECT_NE(bench["losses"][0], bench["losses"][1]);
  EXPECT_EQ(bench["ms_by_phase"].size(), 8u);
  // What a run has its plan for; this one writes no metrics.
  EXPECT_GT(bench["peak_memory_bytes"], bench["planned_memory_bytes"].get<double>() / 2);
  EXPECT_LE(bench["peak_memory_bytes"], bench["planned_memory_bytes"].get<double>() * 1.1);
  EXPECT_FALSE(fs::exists(dir_ / "runs"));
  EXPECT_EQ(bench["layers"].size(), 2u);
  EXPECT_EQ(bench["rank_load_max_over_mean"], 1.0);

  const auto ranks = nlohmann::json::parse(
      output({"bench", "train", "tiny.toml", "--set", "parallel.ranks=2", "--steps", "2", "--warmup", "1", "--json"}));
  ASSERT_EQ(ranks["layers"].size(), 2u);
  EXPECT_EQ(ranks["layers"][0]["ms_by_phase"].size(), 4u);  // dense: forward and backward of both its parts
  EXPECT_FALSE(ranks["layers"][0].contains("sent_bytes"));
  const auto& layer = ranks["layers"][1];
  EXPECT_EQ(layer["layer"], 1);
  EXPECT_EQ(layer["rank_load_max_over_mean"], ranks["rank_load_max_over_mean"]);
  EXPECT_GE(layer["rank_load_max_over_mean"], 1.0);
  EXPECT_EQ(layer["sent_bytes"].size(), 2u);
  EXPECT_GT(layer["sent_bytes"][1], 0.0);
  ASSERT_EQ(layer["waited_ms"].size(), 4u);
  for (const auto& by_rank : layer["waited_ms"]) EXPECT_EQ(by_rank.size(), 2u);
  for (const auto& [transfer, by_rank] : layer["lasted_ms"].items()) {
    EXPECT_GE(by_rank[0], layer["waited_ms"][transfer][0].get<double>()) << transfer;
    EXPECT_EQ(by_rank, layer["exposed_ms"][transfer]) << transfer;  // CPU ranks do one thing at a time
  }

  const std::string report = output({"bench", "train", "tiny.toml", "--steps", "1"});
  for (const char* line : {"first step ", "loss ", "router load ", "  attention backward ", "throughput ", "MFU "}) {
    EXPECT_TRUE(contains(report, line));
  }
}

TEST_F(TrainCommandTest, BenchOfTheExchange) {
  const std::vector<std::string> command = {
      "bench", "exchange",          "tiny.toml", "--set",           "model.moe.num_experts=64",
      "--set", "model.moe.top_k=3", "--set",     "data.seq_len=256"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), command.begin(), command.end());
    return more;
  };
  const auto bench = nlohmann::json::parse(output(with({"--ranks", "2", "--json"})));
  EXPECT_EQ(bench["tokens"], 4 * 256);
  EXPECT_EQ(bench["row_bytes"], 16 * 4);
  ASSERT_EQ(bench["runs"].size(), 1u);
  const auto sent = bench["rows_to_others"].get<std::vector<double>>();
  const auto back = bench["rows_for_others"].get<std::vector<double>>();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0], back[1]);
  EXPECT_EQ(sent[1], back[0]);
  // 1 - C(32, 3) / C(64, 3); a thousand tokens come within 4 standard deviations of it.
  EXPECT_DOUBLE_EQ(bench["expected_rows_per_token"].get<double>(), 1.0 - 32.0 * 31 * 30 / (64.0 * 63 * 62));
  EXPECT_NEAR(sent[0] / 1024, bench["expected_rows_per_token"].get<double>(), 0.04);
  EXPECT_LT(bench["rank_load_max_over_mean"], 1.1);
  const auto& run = bench["runs"][0];
  EXPECT_NEAR(run["send_gb_per_s"].get<double>(), (sent[0] + sent[1]) / 2 * 64 / run["send_ms"].get<double>() / 1e6,
              1e-6 * run["send_gb_per_s"].get<double>());
  for (const char* what : {"return_ms", "barrier_ms", "collect_ms", "layer_ms"}) EXPECT_GT(run[what], 0.0) << what;

  const auto skewed = nlohmann::json::parse(
      output(with({"--set", "train.microbatch_seqs=2", "--ranks", "4", "--skew", "2", "--json"})));
  EXPECT_NEAR(skewed["rank_load_max_over_mean"].get<double>(), 2.0, 0.2);
  const std::string all_on_one = output(with({"--ranks", "2", "--skew", "2"}));
  EXPECT_TRUE(contains(all_on_one, "the most loaded with 2.000 times the mean")) << all_on_one;
  expect_error(n(with({})), 2, "one rank exchanges no tokens", "--ranks 2");
  expect_error(n(with({"--ranks", "2", "--skew", "3"})), 2, "from 1 to 2 times the mean", "");
  expect_error(n(with({"--ranks", "2", "--blocks", "8,16"})), 2, "CPUs have none", "");
}

TEST_F(TrainCommandTest, BenchOfOperations) {
  const std::vector<std::string> command = {"bench", "ops", "--threads", "1", "--only"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), command.begin(), command.end());
    return more;
  };
  const auto bench = nlohmann::json::parse(output(with({"RMS norm", "--json"})));
  ASSERT_EQ(bench["ops"].size(), 2u);
  for (const auto& op : bench["ops"]) {
    EXPECT_EQ(op["bound"], "memory");
    EXPECT_EQ(op["flops"], 0.0);
    // A call takes its bytes at the measured rate, divided by its share of that.
    const double ms = op["bytes"].get<double>() / bench["copy_gb_per_s"].get<double>() / 1e6;
    EXPECT_NEAR(ms / op["ms"].get<double>(), op["share_of_bound"].get<double>(),
                1e-6 * op["share_of_bound"].get<double>());
  }
  const std::string table = output(with({"MoE layer"}));
  for (const char* name : {"MoE layer", "LatentMoE layer"}) {
    EXPECT_TRUE(contains(table, fmt::format("\n{}, forward ", name)));
    EXPECT_TRUE(contains(table, fmt::format("\n{}, backward ", name)));
  }
  expect_error(n(with({"convolution"})), 2, "--only convolution", "RMS norm, forward");
}

// The CPU has one algorithm for a product. A table is read before anything runs.
TEST_F(TrainCommandTest, BenchOfProductsIsForGpus) {
  expect_error(n({"bench", "tune", "tiny.toml", "--out", "table.jsonl"}), 2, "run.device = \"cpu\": there is nothing",
               "--set run.device=cuda");
  EXPECT_FALSE(fs::exists(dir_ / "table.jsonl"));
  write_file_atomically(dir_ / "bad.jsonl", "# a table\n{\"device\": 5}\n");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"bench", "tune", "tiny.toml", "--set", "run.device=cuda", "--out", "bad.jsonl"},
        {"bench", "train", "tiny.toml", "--set", "run.device=cuda", "--products", "bad.jsonl"}}) {
    expect_error(n(command), 1, "bad.jsonl:2: no choice of an algorithm: \"device\" is not text", "n bench tune");
  }
  write_file_atomically(dir_ / "none.jsonl", "# a table\n");
  expect_error(n({"bench", "train", "tiny.toml", "--products", "none.jsonl"}), 2, "--products", "run.device=cuda");
  const std::string json = output({"bench", "train", "tiny.toml", "--steps", "1", "--warmup", "1", "--json"});
  EXPECT_TRUE(contains(json, "\"products\":null")) << json;
}

}  // namespace
}  // namespace nmoe
