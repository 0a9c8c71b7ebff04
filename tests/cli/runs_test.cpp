// n runs and what belongs to it, over two runs that were trained and databases that were made.
#include "track/runs.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "base/utf8.h"
#include "cli/cli_test.h"
#include "track/alerts.h"
#include "track/metrics.h"
#include "track/metrics_reader.h"

namespace nmoe {
namespace {

using nlohmann::json;

class RunsCommandTest : public CliTest {
 protected:
  json ask(std::vector<std::string> arguments) const {
    arguments.emplace_back("--json");
    return json::parse(output(std::move(arguments)), nullptr, false);
  }
};

TEST_F(RunsCommandTest, OfTwoSeeds) {
  prepare();
  output(train({"train.steps=4", "run.name=one", "train.valid_every=2", "checkpoint.every=2"}));
  output(train({"train.steps=3", "run.name=two", "run.seed=2"}));

  // The list.
  json runs = ask({"runs"});
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0]["name"], "two") << "the newest first";
  EXPECT_EQ(runs[1]["step"], 4);
  EXPECT_EQ(runs[1]["checkpoint"], 4);
  EXPECT_EQ(runs[1]["tokens"], 4 * 8 * 16);
  EXPECT_EQ(ask({"runs", "--filter", "step>3"}).size(), 1u);
  EXPECT_EQ(ask({"runs", "--sort", "name"})[0]["name"], "one");
  EXPECT_EQ(ask({"runs", "--sort", "-step"})[0]["name"], "one");
  EXPECT_EQ(ask({"runs", "-n", "1"}).size(), 1u);
  EXPECT_TRUE(contains(output({"runs", "--group"}), "experiment "));
  expect_error(n({"runs", "--filter", "los<3"}), 2, "runs have no 'los'", "did you mean 'loss'?");

  // One run: what it says is what its last validation measured.
  const std::string id = runs[1]["id"];
  MetricsReader reader(metrics_path(dir_ / "runs", id));
  reader.load(std::vector<std::string>{"train/loss", "valid/loss"});
  const auto train = reader.series("train/loss").values(), valid = reader.series("valid/loss").values();
  ASSERT_EQ(train.size(), 4u);
  EXPECT_EQ(runs[1]["valid"], valid.back());
  const json shown = ask({"runs", "show", "one"});
  EXPECT_EQ(shown["last"]["train/loss"]["value"], train[3]);
  EXPECT_EQ(shown["config"]["train.steps"], 4);
  EXPECT_TRUE(contains(output({"runs", "show", id}), "router/layer_01/cv"));
  expect_error(n({"runs", "show", "three"}), 2, "there is no run 'three'", "n runs lists them");

  // Of two checkpoints the older one keeps its weights alone.
  const auto kept = [&](int step) {
    return fs::exists(dir_ / fmt::format("runs/checkpoints/one/step_{:08}/optimizer.safetensors", step));
  };
  EXPECT_TRUE(kept(2));
  EXPECT_TRUE(contains(output({"runs", "prune", "one"}), "KiB freed in runs/checkpoints/one"));
  EXPECT_FALSE(kept(2));
  EXPECT_TRUE(kept(4));
  EXPECT_TRUE(contains(output({"checkpoint", "verify", "runs/checkpoints/one/step_00000002"}), "is whole"));

  // Both, at the third step.
  const json compared = ask({"runs", "compare", "one", "two"});
  EXPECT_EQ(compared["at"], 3.0 * 8 * 16);
  EXPECT_EQ(compared["goal"], "valid/loss");
  const size_t of_one = compared["ranked"][0]["runs"][0] == id ? 0 : 1;
  EXPECT_EQ(compared["ranked"][of_one]["goal"]["mean"], valid[0]);
  EXPECT_EQ(compared["config"]["train.steps"], json::parse(of_one == 0 ? "[4, 3]" : "[3, 4]"));
  EXPECT_TRUE(contains(output({"runs", "compare", "one", "two", "--by", "flops"}), "train.steps"));
  EXPECT_TRUE(contains(output({"runs", "compare", "one", "two", "--markdown"}), "| deviation |"));
  const json chosen = ask({"runs", "compare", "--filter", "status=completed"});
  ASSERT_EQ(chosen["ranked"].size(), 2u);
  EXPECT_EQ(chosen["ranked"][of_one]["goal"], compared["ranked"][of_one]["goal"]);
  EXPECT_EQ(ask({"runs", "compare", "--filter", "status=completed", "--filter", "step>3"})["ranked"].size(), 1u);
  expect_error(n({"runs", "compare"}), 2, "no runs", "--filter");
  expect_error(n({"runs", "compare", "one", "--filter", "step>3"}), 2, "both runs and --filter", "name the runs");
  for (const char* command : {"show", "plot", "prune", "rm"}) {
    expect_error(n({"runs", command, "one", "--filter", "step>3"}), 2, "--filter has no effect there", "name the runs");
  }
  expect_error(n({"runs", "compare", "--filter", "step>9"}), 2, "no run meets the conditions", "n runs lists them");
  EXPECT_TRUE(contains(output({"runs", "plot", "one"}), "train/loss"));
  expect_error(n({"runs", "plot", "one", "--tag", "train/los"}), 2,
               fmt::format("run '{}' has recorded no 'train/los'", id), "did you mean 'train/loss'?");

  // Files.
  output({"runs", "export", "one", "-o", "out"});
  const std::string csv = read_file(dir_ / "out" / id / "scalars.csv");
  EXPECT_TRUE(contains(csv, "tag,step,ts_ms,value\r\n"));
  EXPECT_TRUE(contains(csv, fmt::format(",{}\r\n", train[1])));
  EXPECT_TRUE(contains(read_file(dir_ / "out" / id / "arrays.csv"), "router/layer_01/load,4,"));
  output({"runs", "export", "one", "-o", "out", "--format", "json"});
  const json exported = json::parse(read_file(dir_ / "out" / id / "metrics.json"), nullptr, false);
  EXPECT_EQ(exported["tags"]["train/loss"]["value"], json(std::vector<double>(train.begin(), train.end())));
  output({"runs", "export", "one", "-o", "out", "--format", "tensorboard"});
  int num_events = 0;
  for (const auto& entry : fs::directory_iterator(dir_ / "out" / id)) {
    num_events += contains(entry.path().filename().string(), "events.out.tfevents.") ? 1 : 0;
  }
  EXPECT_EQ(num_events, 1);

  // Notes, and the end.
  output({"runs", "note", "one", "kept \x1b[31m for later"});
  EXPECT_EQ(ask({"runs"})[1]["note"], "kept \x1b[31m for later");
  EXPECT_TRUE(contains(output({"runs"}), "kept \\x1b[31m for later")) << "nothing steers a terminal";
  EXPECT_TRUE(contains(output({"runs", "rm", "one"}), "its checkpoints stay in "));
  EXPECT_EQ(ask({"runs"}).size(), 1u);
  EXPECT_FALSE(fs::exists(dir_ / "runs/metrics" / id));
  EXPECT_TRUE(fs::exists(dir_ / "runs/checkpoints/one/step_00000004"));
}

// The mean of the last 16 logged losses, whether or not the run was cut in two, and not one batch's.
TEST_F(RunsCommandTest, TheLossIsSmoothed) {
  prepare();
  const auto losses = [&](const std::string& name) {
    const json run = ask({"runs", "show", name});
    return std::pair(run["loss"].get<double>(), run["last_loss"].get<double>());
  };
  output(train({"train.steps=20", "run.name=whole"}));
  MetricsReader reader(metrics_path(dir_ / "runs", ask({"runs"})[0]["id"]));
  reader.load(std::vector<std::string>{"train/loss"});
  const auto logged = reader.series("train/loss").values();
  ASSERT_EQ(logged.size(), 20u);
  double sum = 0.0;
  for (const double loss : logged.last(16)) sum += loss;
  EXPECT_EQ(losses("whole"), std::pair(sum / 16.0, logged.back()));
  output(train({"train.steps=7", "run.name=cut"}));
  output(resume({"train.steps=20", "run.name=cut"}));
  EXPECT_EQ(losses("cut"), losses("whole"));
}

// Names come from anywhere: a database may be another's, and a note is what somebody typed.
TEST_F(RunsCommandTest, NothingOfARunSteersATerminal) {
  const std::string hostile = "x\u009B2J\u202Etxt\u2066\x1B]0;\x07" + std::string("\x9B") + "1m\x7F";
  {
    RunStore store(dir_ / "runs/experiments.db");
    const std::string id = store.start({.name = hostile, .experiment = hostile, .checkpoint_dir = hostile});
    store.set_note(id, hostile);
    store.finish(id, RunStatus::kFailed, hostile);
    MetricsWriter writer(metrics_path(dir_ / "runs", id));
    writer.append({.step = 1, .ts_ms = 1, .scalars = {{hostile, 1.0}}});
    append_alert(alerts_path(metrics_path(dir_ / "runs", id)),
                 {.kind = AlertKind::kSpike, .step = 1, .tag = hostile, .text = hostile});
  }
  const std::string run = ask({"runs"})[0]["id"];
  for (std::vector<std::string> arguments : {std::vector<std::string>{"runs"},
                                             {"runs", "--group"},
                                             {"runs", "show", run},
                                             {"runs", "compare", run, run},
                                             {"runs", "plot", run, hostile},
                                             {"runs", "export", run, "--out", "export"},
                                             {"runs", "show", hostile}}) {
    for (const bool json : {false, true}) {
      if (json) arguments.emplace_back("--json");
      const Outcome outcome = n(arguments);
      for (const std::string& text : {outcome.out, outcome.err}) {
        EXPECT_EQ(terminal_safe(text), text) << fmt::format("{}", fmt::join(arguments, " "));
      }
    }
  }
  EXPECT_EQ(ask({"runs"})[0]["note"], as_utf8(hostile));
  EXPECT_TRUE(contains(output({"runs"}), "x\\x9b2J\\u202etxt"));
}

}  // namespace
}  // namespace nmoe
