#include "cli/help.h"

#include <fmt/format.h>

#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace nmoe::cli {
namespace {

// Text that roff prints as it is.
std::string roff(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  return result;
}

// The same as a line of its own, which may not look like a request.
std::string roff_line(const std::string& text) {
  const bool is_request = text.empty() || text.starts_with('.') || text.starts_with('\'');
  return (is_request ? "\\&" : "") + roff(text) + '\n';
}

std::vector<const CLI::Option*> options_of(const CLI::App& command, bool positional) {
  return command.get_options([&](const CLI::Option* option) {
    return option->get_positional() == positional && option != command.get_help_ptr() && !option->get_group().empty();
  });
}

void add_command(const CLI::App& command, const std::string& path, std::string& page) {
  const auto commands = command.get_subcommands({});
  if (!commands.empty()) {
    for (const CLI::App* below : commands) add_command(*below, fmt::format("{} {}", path, below->get_name()), page);
    return;
  }
  const HelpFormatter formatter;
  const auto positionals = options_of(command, true), options = options_of(command, false);
  page += fmt::format(".SS {}", roff(path));
  for (const CLI::Option* option : positionals) page += " " + roff(formatter.make_option_usage(option));
  page += options.empty() ? "\n" : " [options]\n";
  page += roff_line(command.get_description() + '.');
  for (const auto* group : {&positionals, &options}) {
    for (const CLI::Option* option : *group) {
      page += fmt::format(".TP\n.B {}{}\n{}", roff(formatter.make_option_name(option, option->get_positional())),
                          roff(formatter.make_option_opts(option)), roff_line(option->get_description()));
    }
  }
}

}  // namespace

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  constexpr std::string_view kSeveral = " ...";
  std::string text = Formatter::make_option_opts(option);
  if (option->nonpositional() && !option->get_allow_extra_args()) {
    if (const size_t at = text.find(kSeveral); at != std::string::npos) text.erase(at, kSeveral.size());
  }
  return text;
}

void fail_unknown_command(const CLI::App& command, const std::string& path, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::App* known : command.get_subcommands({})) names.push_back(known->get_name());
  const std::string typo = nearest(name, names);
  throw usage_error(fmt::format("{}: there is no command \"{}\"", path, name),
                    typo.empty() ? fmt::format("{} --help lists the commands", path)
                                 : fmt::format("did you mean {} {}?", path, typo));
}

std::string help_of(const CLI::App& program, std::span<const std::string> path) {
  const CLI::App* command = &program;
  std::string above, name = program.get_name();
  for (const std::string& next : path) {
    const CLI::App* found = nullptr;
    for (const CLI::App* known : command->get_subcommands({})) {
      if (known->get_name() == next) found = known;
    }
    if (found == nullptr) fail_unknown_command(*command, name, next);
    command = found;
    above = name;
    name += ' ' + next;
  }
  return command->get_formatter()->make_help(command, name, CLI::AppFormatMode::Normal);
}

std::string manual_page(const CLI::App& program, const std::string& version) {
  const std::string name = program.get_name();
  std::string page = fmt::format(
      ".TH {} 1 \"\" \"nmoe {}\" \"nmoe\"\n"
      ".SH NAME\n{} \\- train Mixture\\-of\\-Experts language models\n"
      ".SH SYNOPSIS\n.B {}\n.I COMMAND\n[arguments] [options]\n"
      ".SH DESCRIPTION\n"
      "Takes a TOML file and a corpus to a trained, validated, served and exported model. Results go to standard "
      "output, "
      "progress and reports to standard error.\n"
      ".SH COMMANDS\n",
      roff(name), roff(version), roff(name), roff(name));
  add_command(program, name, page);
  page +=
      ".SH EXIT STATUS\n0: done; 1: it failed while running; 2: wrong arguments or configuration. Errors say what is "
      "wrong, where, and the remedy.\n"
      ".SH ENVIRONMENT\n"
      ".TP\n.B NMOE_...\nIn strings of a configuration, ${NMOE_NAME:\\-default} is the variable's value, or the "
      "default.\n"
      ".TP\n.B NMOE_API_KEY\nThe key that clients of n serve have to send.\n"
      ".SH FILES\n"
      ".TP\n.I runs/\nwhere configurations put runs (run.dir): experiments.db, metrics/ and checkpoints/.\n";
  return page;
}

}  // namespace nmoe::cli
