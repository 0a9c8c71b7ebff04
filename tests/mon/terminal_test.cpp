// The program in a real terminal, tmux's: skipped where there is none.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "support/errors.h"
#include "support/temp_dir.h"
#include "track/metrics.h"
#include "track/metrics_reader.h"
#include "track/runs.h"

namespace nmoe::mon {
namespace {

using test::contains;

// What a shell command prints.
std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  std::array<char, 4096> buffer{};
  for (size_t size = 0; (size = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    text.append(buffer.data(), size);
  }
  ::pclose(pipe);
  return text;
}

class TerminalTest : public test::TempDirTest {
 protected:
  void SetUp() override {
    if (output_of("command -v tmux").empty()) GTEST_SKIP() << "tmux is not installed";
    RunStore store(dir_ / "runs/experiments.db");
    const std::string id = store.start({.name = "tiny", .experiment = "e"});
    MetricsWriter metrics(metrics_path(dir_ / "runs", id));
    for (int64_t step = 1; step <= 50; ++step) {
      metrics.append({.step = step, .ts_ms = now_ms(), .scalars = {{"train/loss", 5.0 - 0.01 * double(step)}}});
    }
  }
  void TearDown() override { tmux("kill-server 2> /dev/null"); }

  std::string tmux(const std::string& arguments) const {
    return output_of(fmt::format("tmux -u -S {}/socket -f /dev/null {}", dir_.string(), arguments));
  }
  // A shell in a terminal of 80 x 24 that runs `n mon`, then tells how that ended.
  void start(const std::string& options, const std::string& locale = "C.UTF-8") const {
    write_file_atomically(dir_ / "script", fmt::format("export LC_ALL={}\necho before\n{} mon --dir {}/runs {}\n"
                                                       "echo ended with $?\nstty -a | grep -o -- '-*icanon\\|-*echo '\n"
                                                       "sleep 60\n",
                                                       locale, NMOE_PROGRAM, dir_.string(), options));
    tmux(fmt::format("new-session -d -x 80 -y 24 'ulimit -c 0; exec sh {}/script 2>&1'", dir_.string()));
  }
  std::string screen() const { return tmux("capture-pane -p"); }
  // Waits for `text`; the screen at last.
  std::string wait_for(const std::string& text) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::string shown = screen();
    while (shown.find(text) == std::string::npos && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      shown = screen();
    }
    return shown;
  }
  int64_t resident_kib() const {
    const std::string shell = tmux("display-message -p '#{pane_pid}'");
    const std::string said = output_of(fmt::format(
        "for p in $(cat /proc/{0}/task/{0}/children); do grep VmRSS /proc/$p/status; done", std::stoi(shell)));
    return std::stoll(said.substr(said.find_first_of("0123456789")));
  }
  // `n` is the shell's one child.
  void send(const std::string& signal) const {
    const std::string shell = tmux("display-message -p '#{pane_pid}'");
    output_of(
        fmt::format("for p in $(cat /proc/{0}/task/{0}/children); do kill -{1} $p; done", std::stoi(shell), signal));
  }
  void expect_given_back(const std::string& ended) const {
    const std::string shown = wait_for("echo");
    EXPECT_TRUE(contains(shown, "before\n")) << "what stood there before";
    EXPECT_TRUE(contains(shown, ended));
    EXPECT_TRUE(contains(shown, "\nicanon\n"));
    EXPECT_TRUE(contains(shown, "\necho\n"));
    EXPECT_EQ(tmux("display-message -p '#{alternate_on} #{cursor_flag} #{keypad_cursor_flag}'"), "0 1 0\n");
  }
};

TEST_F(TerminalTest, ShowsTakesKeysAndGivesBack) {
  start("tiny");
  std::string shown = wait_for("steps 1 to 50");
  EXPECT_TRUE(contains(shown, "loss 4.5000")) << "in 80 x 24";
  EXPECT_TRUE(contains(shown, "F1Help"));
  EXPECT_TRUE(contains(shown, "\xe2\xa0")) << "a curve of braille characters";
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  int64_t kib = 0;
  for (int i = 0; i < 100 && ((kib = resident_kib()) > 40 << 10); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_LE(kib, 40 << 10) << "memory, once all is read";
#endif
  tmux("resize-window -x 120 -y 40");
  tmux("send-keys F1");
  EXPECT_TRUE(contains(wait_for("logarithmic axis"), "help"));
  tmux("send-keys x");
  wait_for("steps 1 to 50");
  tmux("send-keys q");
  expect_given_back("ended with 0");
}

TEST_F(TerminalTest, AfterSigterm) {
  start("-C");
  wait_for("steps 1 to 50");
  send("TERM");
  expect_given_back("ended with 0");
}

TEST_F(TerminalTest, AfterACrash) {
  start("tiny", "C");
  const std::string shown = wait_for("steps 1 to 50");
  for (const char c : shown) EXPECT_GE(c, 0) << "ASCII alone where the locale has no more: " << shown;
  send("SEGV");
  expect_given_back("ended with 139");
}

TEST_F(TerminalTest, WithoutATerminal) {
  const std::string said = output_of(fmt::format("{} mon --dir {}/runs 2>&1 < /dev/null", NMOE_PROGRAM, dir_.string()));
  EXPECT_TRUE(contains(said, "n mon needs a terminal"));
}

}  // namespace
}  // namespace nmoe::mon
