// The program `n` in a terminal of its own, as a person uses it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace nmoe::test {

class Terminal {
 public:
  // Starts `n` with these arguments in the folder `dir`.
  Terminal(const fs::path& dir, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), NMOE_PROGRAM);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = ::forkpty(&fd_, nullptr, nullptr, &size);
    NMOE_CHECK(pid_ >= 0, "no new terminal");
    if (pid_ > 0) return;
    ::setenv("TERM", "vt100", 1);
    ::setenv("HOME", dir.c_str(), 1);  // no .editrc of whoever runs the tests
    if (::chdir(dir.c_str()) == 0) ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  ~Terminal() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(fd_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(std::string_view keys) const {
    NMOE_CHECK(::write(fd_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()), "not typed");
  }

  // Reads what appears up to `text`, and returns all of it since the last call; what is behind stays for the next. It
  // ends without `text` when the program did, or two minutes went by.
  std::string read_until(std::string_view text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (screen_.find(text) == std::string::npos && std::chrono::steady_clock::now() < deadline) {
      pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, 100) == 0) continue;
      char buffer[4096];
      const ssize_t size = ::read(fd_, buffer, sizeof(buffer));
      if (size <= 0) break;  // its other side was closed
      screen_.append(buffer, static_cast<size_t>(size));
    }
    const size_t found = screen_.find(text), end = found == std::string::npos ? screen_.size() : found + text.size();
    const std::string shown = screen_.substr(0, end);
    screen_.erase(0, end);
    return shown;
  }

  // Waits for the program to ask for a line by `prompt` and to take each key by itself, which it does a little later.
  // What is typed in between is not taken for keys.
  void wait_for_prompt(std::string_view prompt = "> ") {
    read_until(prompt);
    for (int i = 0; i < 12'000 && is_cooked(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  // Waits for its end: the exit code, or 128 + the signal's number, which is SIGKILL's when it had not ended after two
  // minutes. Call once.
  int wait() {
    int status = 0;
    for (int i = 0; ::waitpid(pid_, &status, WNOHANG) == 0; ++i) {
      if (i == 12'000) ::kill(pid_, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // Whether lines are put together, and keys shown, by the system, as a shell wants it.
  bool is_cooked() const {
    termios settings{};
    NMOE_CHECK(::tcgetattr(fd_, &settings) == 0, "no settings of the terminal");
    return (settings.c_lflag & (ICANON | ECHO | ISIG)) == (ICANON | ECHO | ISIG);
  }

 private:
  int fd_ = -1;
  int pid_ = 0;
  std::string screen_;
};

}  // namespace nmoe::test
