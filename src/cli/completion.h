// Completion of the program's command line in shells, from the one declaration of the commands and that of the
// configuration's keys.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace nmoe::cli {

// A script to be sourced by `shell`: "bash", "zsh" or "fish".
std::string completion_script(const CLI::App& program, const std::string& shell);

}  // namespace nmoe::cli
