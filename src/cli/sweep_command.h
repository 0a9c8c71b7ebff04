// n research sweep, ladder, status, stop, report (research/sweep/sweep.h, research/ladder/, research/report/).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "research/sweep/sweep_state.h"

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

void ladder_command(const SweepArguments& arguments);
void ladder_report_command(const SweepArguments& arguments);

// The state in a sweep's folder. Error (usage), naming the sweep's file: it has not begun.
SweepState sweep_state_of(const fs::path& folder, const std::string& file);
bool has_open_runs(const SweepState& state);      // such as have not ended
double seconds_per_flop(const fs::path& folder);  // of the runs that have ended; 0: none has
void print_sweep_state(const SweepState& state, bool at_work);

// Parsing fills the arguments, which stay with the caller, and sets `run` to what is to be done.
void add_sweep(CLI::App& research, SweepArguments& arguments, std::function<void()>& run);

}  // namespace nmoe::cli
