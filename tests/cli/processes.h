// Runs of several processes of the program.
#pragma once

#include <chrono>
#include <csignal>
#include <list>

#include "cli/cli_test.h"
#include "support/free_port.h"

namespace nmoe {

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

}  // namespace nmoe
