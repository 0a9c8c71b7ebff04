// The command line itself: what is there, what is not, and what --help and --version say.
#include <regex>
#include <sstream>

#include "cli/cli_test.h"

namespace nmoe {
namespace {

using ArgumentsTest = CliTest;

TEST_F(ArgumentsTest, NamesItsVersion) {
  const std::string text = output({"--version"});
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(^nmoe \d+\.\d+\.\d+ \([0-9a-z]+\+?\)\n)"))) << text;
  EXPECT_TRUE(contains(text, "cpu: x86-64-v3"));
}

// Messages quote files that others wrote.
TEST_F(ArgumentsTest, NothingSteersTheTerminal) {
  const test::Outcome outcome = n({"config", "a\x1b[2J\x07.toml"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err.find_first_of("\x1b\x07"), std::string::npos);
  EXPECT_TRUE(contains(outcome.err, R"(a\x1b[2J\x07.toml)"));
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
  EXPECT_TRUE(contains(train, "--set SECTION.KEY=VALUE"));
  EXPECT_TRUE(contains(train, "(repeatable)"));
  EXPECT_FALSE(contains(train, "..."));
  expect_error(n({"train", "tiny.toml", "--set", "train.steps=1", "train.log_every=1"}), 2, "train.log_every=1",
               "n train --help");
  EXPECT_TRUE(contains(output({"config", "tiny.toml", "--set", "train.steps=1", "--set", "train.log_every=7"}),
                       "log_every        = 7 "));

  EXPECT_TRUE(contains(output({"prep", "--help"}), "--valid TEXT ..."));
  output({"prep", "train.txt", "--out", "data", "--valid", "valid.txt", "valid.txt"});
}

TEST_F(ArgumentsTest, WithoutACommandThereIsHelp) {
  EXPECT_EQ(output({}), output({"--help"}));
  EXPECT_EQ(output({"tokenizer"}), output({"tokenizer", "--help"}));
}

TEST_F(ArgumentsTest, HelpOfACommand) {
  EXPECT_EQ(output({"help"}), output({"--help"}));
  EXPECT_EQ(output({"help", "train"}), output({"train", "--help"}));
  EXPECT_EQ(output({"help", "tokenizer", "train"}), output({"tokenizer", "train", "--help"}));
  expect_error(n({"help", "trian"}), 2, "there is no command \"trian\"", "did you mean n train?");
  expect_error(n({"help", "tokenizer", "trian"}), 2, "n tokenizer: there is no command \"trian\"",
               "did you mean n tokenizer train?");
}

// roff reads it without a complaint, where there is one.
TEST_F(ArgumentsTest, TheManualPageHasEveryCommand) {
  const std::string page = output({"help", "--man"});
  for (const char* part : {".TH n 1", ".SH NAME\n", ".SS n train config", ".SS n tokenizer train inputs",
                           ".B \\-\\-resume\n", ".SH EXIT STATUS\n"}) {
    EXPECT_TRUE(contains(page, part));
  }
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_FALSE(line.empty()) << "an empty line is a request of its own";
    const bool is_request = line.starts_with(".TH ") || line.starts_with(".SH ") || line.starts_with(".SS ") ||
                            line == ".TP" || line.starts_with(".B ") || line.starts_with(".I ");
    EXPECT_TRUE(is_request || (line[0] != '.' && line[0] != '\'')) << line;
  }
}

TEST_F(ArgumentsTest, BashCompletesCommandsOptionsKeysAndFiles) {
  write("n.bash", output({"completion", "bash"}));
  // The completions of the last word, sorted.
  const auto complete = [&](const std::string& words) {
    const std::string script = fmt::format(
        "source n.bash; COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _n; echo \"${{COMPREPLY[*]}}\"",
        words);
    const Outcome outcome = test::Program(dir_, {"/bin/bash", "-c", script}).wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  };
  EXPECT_EQ(complete("n tra"), "train\n");
  EXPECT_EQ(complete("n tokenizer ''"), "train encode decode info\n");
  EXPECT_EQ(complete("n tokenizer tr"), "train\n");
  EXPECT_EQ(complete("n help tok"), "tokenizer\n");
  EXPECT_EQ(complete("n train --re"), "--resume\n");
  EXPECT_EQ(complete("n train tiny"), "tiny.toml\n");
  EXPECT_EQ(complete("n train tiny.toml --set train.batch"), "train.batch_seqs=\n");
  EXPECT_EQ(complete("n train tiny.toml --set train.steps=3 --resu"), "--resume\n");
  EXPECT_EQ(complete("n bench train tiny.toml --set optim.lr"), "optim.lr=\n");
}

TEST_F(ArgumentsTest, OtherShellsHaveScriptsToo) {
  EXPECT_TRUE(contains(output({"completion", "zsh"}), "bashcompinit\n"));
  const std::string fish = output({"completion", "fish"});
  EXPECT_TRUE(contains(fish, "complete -c n -f -n '__fish_use_subcommand' -a train -d 'train a model'\n"));
  EXPECT_TRUE(contains(fish, "complete -c n -n '__fish_seen_subcommand_from train' -l resume -d "));
  expect_error(n({"completion", "tcsh"}), 2, "tcsh", "n completion --help");
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
