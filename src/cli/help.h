// What `n --help` and its like print. Compiled for any x86-64, as main.cpp is.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace nmoe::cli {

// Has "..." behind an option only where several values may follow it at once; one that may only be given several times
// says so in its description.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
};

}  // namespace nmoe::cli
