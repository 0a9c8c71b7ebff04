// The command line itself: what is there, what is not, and what --help and --version say.
#include <regex>
#include <sstream>

#include "cli/cli_test.h"
#include "support/terminal.h"

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
  write("escape.json", R"({"model": {"type": "\u001b[2J"}})");
  const test::Outcome tokenizer = n({"tokenizer", "info", "escape.json"});
  EXPECT_EQ(tokenizer.exit_code, 1);
  EXPECT_EQ(tokenizer.err.find('\x1b'), std::string::npos) << tokenizer.err;
  // On a terminal nor do texts of files, which come through a pipe as they are.
  write("escape.txt", "before\x1b[2Jafter");
  output({"prep", "escape.txt", "--out", "escape"});
  EXPECT_TRUE(contains(output({"data", "sample", "escape"}), "before\x1b[2Jafter"));
  test::Terminal terminal(dir_, {"data", "sample", "escape"});
  EXPECT_TRUE(contains(terminal.read_until("after"), R"(before\x1b[2Jafter)"));
  EXPECT_EQ(terminal.wait(), 0);
}

// More threads than there is memory for their stacks are refused, neither the end of the program nor a wait for ever.
TEST_F(ArgumentsTest, ThreadsThatCannotBeHad) {
  const auto limited = [&](const std::string& command) {
    return test::Program(dir_, {"bash", "-c", fmt::format("ulimit -v 3000000; exec {} {}", NMOE_PROGRAM, command)})
        .wait();
  };
  expect_error(limited("prep train.txt --out data --threads 4096"), 1, "cannot start a thread (", "--threads");
  EXPECT_FALSE(fs::exists(dir_ / "data"));
  output({"prep", "train.txt", "--valid", "valid.txt", "--out", "data"});
  // Far more than there are processors are had, and do not wait for each other.
  const auto begin = std::chrono::steady_clock::now();
  output({"plan", "tiny.toml", "--set", "run.threads=256"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));  // half a second on an idle machine
  expect_error(limited("plan tiny.toml --set run.threads=4096"), 1, "cannot start a thread (", "run.threads");
  expect_error(limited("train tiny.toml --set train.steps=1 --set run.threads=4096"), 1, "cannot start a thread (",
               "run.threads");
}

TEST_F(ArgumentsTest, HelpListsTheCommands) {
  const std::string text = output({"--help"});
  for (const char* command : {"train", "plan", "config", "runs", "mon", "prep", "tokenizer", "checkpoint", "generate",
                              "chat", "serve", "bench", "selftest"}) {
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
