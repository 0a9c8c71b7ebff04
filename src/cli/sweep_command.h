// n research sweep, status, stop (research/sweep/sweep.h).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace nmoe::cli {

struct SweepArguments {
  std::string file;
  int64_t parallel = 0;  // 0: the file's
  bool dry_run = false;
  bool json = false;
};

// Parsing fills the arguments, which stay with the caller, and sets `run` to what is to be done.
void add_sweep(CLI::App& research, SweepArguments& arguments, std::function<void()>& run);

}  // namespace nmoe::cli
