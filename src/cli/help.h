// What `n --help`, `n help` and the manual page say, from the one declaration of the commands.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>

namespace nmoe::cli {

// Has "..." behind an option only where several values may follow it at once; one that may only be given several times
// says so in its description.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
};

// The help of the command that `path` leads to from the program: {"tokenizer", "train"}. Error (usage) where there is
// none.
std::string help_of(const CLI::App& program, std::span<const std::string> path);

// A manual page (roff, section 1) of all commands and options.
std::string manual_page(const CLI::App& program, const std::string& version);

// `command` of `path` ("n tokenizer") has no command `name`.
[[noreturn]] void fail_unknown_command(const CLI::App& command, const std::string& path, const std::string& name);

}  // namespace nmoe::cli
