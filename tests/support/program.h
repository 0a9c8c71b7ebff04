// Runs the program `n` as a user would, and keeps what it says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace nmoe::test {

struct Outcome {
  int exit_code = -1;  // 128 + the signal's number when one ended it
  std::string out;
  std::string err;
  int64_t peak_resident_bytes = 0;
};

// A process, its standard output and error going to memory.
class Program {
 public:
  // Starts `command` (a program's path and its arguments) in the folder `dir`, with `input` to read.
  Program(const fs::path& dir, const std::vector<std::string>& command, std::string_view input = "");
  ~Program();  // kills it when it still runs
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Returns true as soon as it has written `text` to standard error, and false when it ended
  // without, or two minutes went by.
  bool wait_for(std::string_view text);
  std::string errors() const;  // what it has written to standard error so far
  void send(int signal) const;
  int pid() const { return pid_; }
  // Waits for its end. Call once.
  Outcome wait();

 private:
  bool ended();  // collects the exit status, once there is one

  int in_;  // files in memory
  int out_;
  int err_;
  int pid_;
  Outcome outcome_;
};

// Runs `n` with these arguments to its end.
Outcome run_n(const fs::path& dir, std::vector<std::string> arguments, std::string_view input = "");

}  // namespace nmoe::test
