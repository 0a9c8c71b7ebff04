// The commands about runs that were recorded: n runs and what belongs to it, n mon, n viz.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/commands.h"

namespace nmoe::cli {

// Parsing fills the arguments, which stay with the caller, and sets `run` to what is to be done.
void add_run_commands(CLI::App& app, RunsArguments& runs, MonArguments& mon, VizArguments& viz,
                      std::function<void()>& run);

}  // namespace nmoe::cli
