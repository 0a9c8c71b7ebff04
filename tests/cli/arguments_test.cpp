// The command line itself: what is there, what is not, and what --help and --version say.
#include <regex>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

using ArgumentsTest = CliTest;

TEST_F(ArgumentsTest, NamesItsVersion) {
  const std::string text = output({"--version"});
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(^nmoe \d+\.\d+\.\d+ \([0-9a-z]+\+?\)\n)"))) << text;
  EXPECT_TRUE(contains(text, "cpu: x86-64-v3"));
}

TEST_F(ArgumentsTest, HelpListsTheCommands) {
  const std::string text = output({"--help"});
  for (const char* command :
       {"train", "plan", "config", "runs", "prep", "tokenizer", "checkpoint", "generate", "chat", "serve", "bench"}) {
    EXPECT_TRUE(contains(text, command));
  }
  EXPECT_TRUE(contains(output({"train", "--help"}), "--resume"));
}

// Help shows what is taken: one value after each --set, which may come several times, but all files of --valid at once.
TEST_F(ArgumentsTest, HelpShowsHowManyValuesAnOptionTakes) {
  const std::string train = output({"train", "--help"});
  EXPECT_TRUE(contains(train, "--set KEY=VALUE  "));
  EXPECT_TRUE(contains(train, "(repeatable)"));
  EXPECT_FALSE(contains(train, "..."));
  expect_error(n({"train", "tiny.toml", "--set", "train.steps=1", "train.log_every=1"}), 2, "train.log_every=1",
               "n train --help");
  EXPECT_TRUE(contains(output({"config", "tiny.toml", "--set", "train.steps=1", "--set", "train.log_every=7"}),
                       "log_every        = 7 "));

  EXPECT_TRUE(contains(output({"prep", "--help"}), "--valid TEXT ..."));
  output({"prep", "train.txt", "--out", "data", "--valid", "valid.txt", "valid.txt"});
}

TEST_F(ArgumentsTest, ACommandIsNeeded) {
  expect_error(n({}), 2, "n: no command is given", "n --help");
  expect_error(n({"tokenizer"}), 2, "n tokenizer: no command is given", "n tokenizer --help");
}

TEST_F(ArgumentsTest, UnknownCommands) {
  expect_error(n({"trian", "tiny.toml"}), 2, "no command \"trian\"", "did you mean n train?");
  expect_error(n({"frobnicate"}), 2, "no command \"frobnicate\"", "n --help");
  expect_error(n({"checkpoint", "verfiy"}), 2, "n checkpoint: there is no command \"verfiy\"",
               "did you mean n checkpoint verify?");
}

TEST_F(ArgumentsTest, WrongOptions) {
  expect_error(n({"train"}), 2, "n train: config is required", "n train --help");
  expect_error(n({"train", "tiny.toml", "--rseume"}), 2, "--rseume", "n train --help");
  expect_error(n({"train", "tiny.toml", "--set"}), 2, "--set", "n train --help");
  expect_error(n({"generate", "x", "--temperature", "nan"}), 2, "nan is not a number of at least 0",
               "n generate --help");
  expect_error(n({"generate", "x", "--top-p", "1.5"}), 2, "1.5 is not a number from 0 to 1", "n generate --help");
  expect_error(n({"generate", "x", "--max-tokens", "many"}), 2, "--max-tokens", "--help");
  expect_error(n({"generate", "x", "--threads", "-1"}), 2, "--threads", "--help");
  expect_error(n({"prep", "train.txt", "--out", "data", "--threads", "-1"}), 2, "--threads", "--help");
  expect_error(n({"runs", "--limit", "-1"}), 2, "--limit", "--help");
}

TEST_F(ArgumentsTest, RunsNeedsAFolderOfRuns) {
  expect_error(n({"runs"}), 2, "runs/experiments.db does not exist", "--dir");
  EXPECT_FALSE(fs::exists(dir_ / "runs"));
}

}  // namespace
}  // namespace nmoe
