// The commands that evaluate a model: n eval and what belongs to it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/commands.h"

namespace nmoe::cli {

// Parsing fills the arguments, which stay with the caller, and sets `run` to what is to be done.
void add_evaluation(CLI::App& app, EvalArguments& arguments, EvalCompareArguments& comparison,
                    std::function<void()>& run);

}  // namespace nmoe::cli
