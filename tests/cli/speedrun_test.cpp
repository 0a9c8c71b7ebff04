// n speedrun, on the CPU: training ends at the target, and only what reached it gets an entry.
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "cli/cli_test.h"

namespace nmoe {
namespace {

class SpeedrunTest : public CliTest {
 protected:
  SpeedrunTest() {
    make_directories(dir_ / "tasks");
    write("tasks/rows.jsonl", R"({"context": "the", "continuation": "cat"}
{"context": "it", "continuation": "rained"}
{"context": "the old", "continuation": "dog"}
)");
    write("mine.toml", "mean = \"MINE\"\n[tasks.words]\ntype = \"language_modeling\"\nfile = \"rows.jsonl\"\n");
    prepare();
  }
  Outcome speedrun(const std::vector<std::string>& settings) const {
    std::vector<std::string> arguments = {"speedrun", "tiny.toml", "--tasks", "mine.toml", "--data", "tasks"};
    for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return n(std::move(arguments));
  }
  nlohmann::json entries() const {
    return parse_json<nlohmann::json>(read_file(dir_ / "LEADERBOARD.json")).at("entries");
  }
  // The initial loss is ln 257, 5.55.
  static std::vector<std::string> to(const std::string& target) {
    return {"train.valid_every=2", "train.target_loss=" + target};
  }
};

TEST_F(SpeedrunTest, EndsAtItsTarget) {
  const Outcome outcome = speedrun(to("4.5"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "or until a validation, every 2 steps, gives 4.5 nats per token"));
  ASSERT_EQ(entries().size(), 1u);
  const nlohmann::json entry = entries().at(0);
  const auto steps = entry.at("steps").get<int64_t>();
  EXPECT_GT(steps, 2);
  EXPECT_LT(steps, 20);
  EXPECT_EQ(steps % 2, 0);
  EXPECT_EQ(entry.at("tokens"), steps * 8 * 16);
  EXPECT_LE(entry.at("valid_loss"), 4.5);
  EXPECT_GT(entry.at("train_seconds"), 0.0);
  EXPECT_EQ(entry.at("precision"), "fp32");
  EXPECT_EQ(entry.at("hardware"), "CPU");
  EXPECT_EQ(entry.at("config"),
            output({"config", "tiny.toml"}).substr(output({"config", "tiny.toml"}).rfind(' ') + 1, 64));
  EXPECT_EQ(entry.at("scores").size(), 1u);
  EXPECT_TRUE(entry.at("scores").contains("MINE"));
  EXPECT_TRUE(contains(outcome.out, "to 4.5 nats per token (all learned targets) of the corpus"));
  // The weights are those of a run of so many steps, and the loss did not reach the target before.
  output(train({fmt::format("train.steps={}", steps), "run.name=plain"}));
  EXPECT_EQ(weights("tiny"), weights("plain"));
  const Outcome shorter = n(train({fmt::format("train.steps={}", steps - 2), "run.name=shorter"}));
  EXPECT_GT(std::stod(shorter.out.substr(shorter.out.find("loss ") + 5)), 4.5);
  // There is nothing to go on with.
  auto again = to("4.5");
  again.emplace_back("train.steps=20");
  EXPECT_TRUE(contains(output(resume(again)), "nothing to do"));

  // An evaluation that is lost is done again, and the entry with it, without training.
  remove_tree(dir_ / "runs/speedruns/tiny/evaluation");
  write("LEADERBOARD.json", R"({"entries": []})");
  const Outcome evaluated = speedrun(to("4.5"));
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_FALSE(contains(evaluated.err, "validation loss"));
  EXPECT_EQ(entries(), nlohmann::json::array({entry}));

  auto ranks = to("5");
  ranks.insert(ranks.end(), {"run.name=ranks", "parallel.ranks=2", "train.microbatch_seqs=2"});
  ASSERT_EQ(speedrun(ranks).exit_code, 0);
  const std::string list = output({"speedrun", "--list"});
  EXPECT_LT(list.find("to 4.5 nats"), list.find("to 5 nats"));
  EXPECT_TRUE(contains(list, "2 x CPU"));
}

TEST_F(SpeedrunTest, RunsThatEndBeforeTheirTargetHaveNoEntry) {
  auto settings = to("0.01");
  settings.emplace_back("train.steps=4");
  expect_error(speedrun(settings), 1, "no entry: after step 4, the last, the validation loss is", "train.target_loss");
  EXPECT_FALSE(fs::exists(dir_ / "LEADERBOARD.json"));
  expect_error(speedrun(settings), 2, "not trained to its target in one go", "run.name");
  expect_error(n({"speedrun", "--list"}), 2, "'LEADERBOARD.json' has no entries", "n speedrun CONFIG");
  expect_error(speedrun({}), 2, "ends at train.target_loss", "train.valid_every");
  expect_error(speedrun({"train.target_loss=3"}), 2, "train.target_loss", "train.valid_every > 0");
  expect_error(n({"speedrun"}), 2, "a configuration file or --list", "n speedrun --help");
  // What the evaluation lacks is told before the first step.
  auto named = to("4.5");
  named.emplace_back("run.name=other");
  fs::remove(dir_ / "tasks/rows.jsonl");
  expect_error(speedrun(named), 2, "there is no 'rows.jsonl'", "scripts/eval_data.sh");
  EXPECT_FALSE(fs::exists(dir_ / "runs/checkpoints/other"));
}

TEST_F(SpeedrunTest, AnotherTargetIsAnotherRun) {
  ASSERT_EQ(speedrun(to("5")).exit_code, 0);
  expect_error(speedrun(to("4.9")), 2, "is of a speedrun to 5 with the configuration", "another run.name");
  write("LEADERBOARD.json", "{}");
  expect_error(n({"speedrun", "--list"}), 1, "'LEADERBOARD.json' is not as n speedrun writes it", "mend it");
}

}  // namespace
}  // namespace nmoe
