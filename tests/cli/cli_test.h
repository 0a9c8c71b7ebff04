// What tests of the program share: a folder with a text, a configuration and, once prepared, a
// corpus; the program run in it; and what it must say.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <utility>
#include <vector>

#include "support/errors.h"
#include "support/program.h"
#include "support/temp_dir.h"
#include "support/tiny_run.h"

namespace nmoe {

using test::contains;
using test::Outcome;

class CliTest : public test::TempDirTest {
 protected:
  CliTest() {
    ::unsetenv("NMOE_RUN");
    write("tiny.toml", test::kTinyToml);
    write("train.txt", test::tiny_text(6000, 1));
    write("valid.txt", test::tiny_text(700, 2));
  }

  void write(const fs::path& name, std::string_view content) const { write_file_atomically(dir_ / name, content); }

  Outcome n(std::vector<std::string> arguments, std::string_view input = "") const {
    return test::run_n(dir_, std::move(arguments), input);
  }
  // The same, of which success is expected; returns what it printed.
  std::string output(std::vector<std::string> arguments, std::string_view input = "") const {
    const Outcome outcome = n(std::move(arguments), input);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }

  void prepare() const { output({"prep", "train.txt", "--valid", "valid.txt", "--out", "data", "--threads", "1"}); }

  static std::vector<std::string> train(const std::vector<std::string>& settings, bool resume = false) {
    std::vector<std::string> arguments = {"train", "tiny.toml"};
    if (resume) arguments.emplace_back("--resume");
    for (const std::string& setting : settings) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    return arguments;
  }
  static std::vector<std::string> resume(const std::vector<std::string>& settings) {
    return train(settings, /*resume=*/true);
  }

  // The rest of the line of `n checkpoint info` that begins with `name`.
  std::string info(const fs::path& checkpoint, const std::string& name) const {
    const std::string text = "\n" + output({"checkpoint", "info", checkpoint.string()});
    const size_t line = text.find("\n" + name + " ");
    if (line == std::string::npos) return "no line " + name;
    const size_t value = text.find_first_not_of(' ', line + 1 + name.size());
    return text.substr(value, text.find('\n', value) - value);
  }
  std::string weights(const std::string& run) const { return info("runs/checkpoints/" + run, "weights"); }

  // The line of the newest run of this name in `n runs`.
  std::string listed(const std::string& name) const {
    const std::string table = output({"runs"});
    const size_t place = table.find(" " + name + " ");
    if (place == std::string::npos) return "no run " + name;
    const size_t begin = table.rfind('\n', place) + 1;
    return table.substr(begin, table.find('\n', place) - begin);
  }
};

// The last thing on standard error must be an error that begins like this, and its remedy.
inline void expect_error(const Outcome& outcome, int exit_code, const std::string& what, const std::string& remedy) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
  const size_t error = outcome.err.rfind("error: ");
  ASSERT_NE(error, std::string::npos) << outcome.err;
  const std::string message = outcome.err.substr(error);
  const size_t split = message.find("\nremedy: ");
  ASSERT_NE(split, std::string::npos) << message;
  EXPECT_TRUE(contains(message.substr(0, split), what));
  EXPECT_TRUE(contains(message.substr(split), remedy));
}

}  // namespace nmoe
