// n research sweep, status, stop, report (research/sweep/sweep.h, research/report/sweep_report.h).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace nmoe::cli {

struct SweepArguments {
  std::string file;
  int64_t parallel = 0;  // 0: the file's
  int64_t confirm = 0;   // fresh seeds for the best point, once all runs have ended
  bool dry_run = false;
  bool json = false;
  bool markdown = false;
  std::string by = "tokens";
};

// Parsing fills the arguments, which stay with the caller, and sets `run` to what is to be done.
void add_sweep(CLI::App& research, SweepArguments& arguments, std::function<void()>& run);

}  // namespace nmoe::cli
