#include "cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "base/error.h"
#include "config/schema.h"

namespace nmoe::cli {
namespace {

// A command and what may follow it.
struct Command {
  const CLI::App* app;
  std::string path;                       // "n tokenizer train"
  std::vector<const CLI::App*> commands;  // below it; then it takes nothing else
  std::vector<std::string> options;       // "--set"
  bool sets_keys = false;                 // its --set takes keys of the configuration
};

void collect(const CLI::App& app, const std::string& path, std::vector<Command>& all) {
  Command command{.app = &app, .path = path};
  command.commands = app.get_subcommands({});
  for (const CLI::Option* option : app.get_options({})) {
    for (const std::string& name : option->get_lnames()) command.options.push_back("--" + name);
  }
  for (const CLI::Option* option : app.get_options({})) {
    command.sets_keys = command.sets_keys || option->get_type_name() == "SECTION.KEY=VALUE";
  }
  all.push_back(command);
  for (const CLI::App* below : all.back().commands) collect(*below, fmt::format("{} {}", path, below->get_name()), all);
}

std::string join(const std::vector<std::string>& words, const char* separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

std::vector<std::string> settings() {
  Config config;
  std::vector<std::string> keys;
  for (const Field& field : describe(config)) keys.push_back(field.key + "=");
  return keys;
}

std::string bash_script(const std::vector<Command>& commands) {
  std::vector<std::string> paths, set_paths;
  std::string cases;
  for (const Command& command : commands) {
    if (command.path != commands[0].path) paths.push_back(fmt::format("'{}'", command.path));
    if (command.sets_keys) set_paths.push_back(fmt::format("'{} --set'", command.path));
    std::vector<std::string> names;
    for (const CLI::App* below : command.commands) names.push_back(below->get_name());
    cases += fmt::format("    '{}') commands='{}' options='{}' ;;\n", command.path, join(names, " "),
                         join(command.options, " "));
  }
  constexpr std::string_view kScript = R"(_n() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} path=n word i commands options
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${{COMP_WORDS[i]}}
    case "$path $word" in
      {}) path="$path $word" ;;
    esac
  done
  case "$path $before" in
    {})
      COMPREPLY=($(compgen -W '{}' -- "$current"))
      compopt -o nospace 2> /dev/null
      return 0 ;;
  esac
  case $path in
{}  esac
  if [[ $path == 'n help' ]]; then commands='{}'; fi
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif [[ -n $commands ]]; then
    COMPREPLY=($(compgen -W "$commands" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
    compopt -o filenames 2> /dev/null
  fi
  return 0  # zsh, and a caller that is not completing, have no compopt
}}
complete -F _n n
)";
  std::vector<std::string> names;
  for (const CLI::App* command : commands[0].commands) names.push_back(command->get_name());
  return fmt::format(kScript, join(paths, "|"), join(set_paths, "|"), join(settings(), " "), cases, join(names, " "));
}

std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '\'';
}

std::string fish_script(const std::vector<Command>& commands) {
  std::string script;
  for (const Command& command : commands) {
    // Behind the command's own name, and before one of its commands.
    std::string condition = "__fish_use_subcommand";
    std::vector<std::string> names;
    for (const CLI::App* below : command.commands) names.push_back(below->get_name());
    if (command.path != commands[0].path) {
      std::vector<std::string> seen;
      for (size_t begin = command.path.find(' '); begin != std::string::npos;) {
        const size_t end = command.path.find(' ', begin + 1);
        seen.push_back("__fish_seen_subcommand_from " + command.path.substr(begin + 1, end - begin - 1));
        begin = end;
      }
      condition = join(seen, "; and ");
      if (!names.empty()) condition += "; and not __fish_seen_subcommand_from " + join(names, " ");
    }
    for (const CLI::App* below : command.commands) {
      script += fmt::format("complete -c n -f -n {} -a {} -d {}\n", fish_quoted(condition), below->get_name(),
                            fish_quoted(below->get_description()));
    }
    for (const CLI::Option* option : command.app->get_options({})) {
      for (const std::string& name : option->get_lnames()) {
        const bool keys = command.sets_keys && name == "set";
        script += fmt::format("complete -c n -n {} -l {}{}{} -d {}\n", fish_quoted(condition), name,
                              option->get_items_expected_max() == 0 ? "" : " -r",
                              keys ? fmt::format(" -f -a {}", fish_quoted(join(settings(), " "))) : "",
                              fish_quoted(option->get_description()));
      }
    }
  }
  return script;
}

}  // namespace

std::string completion_script(const CLI::App& program, const std::string& shell) {
  std::vector<Command> commands;
  collect(program, program.get_name(), commands);
  if (shell == "bash") return "# Completion of n: source this in ~/.bashrc.\n" + bash_script(commands);
  if (shell == "zsh") {
    return "# Completion of n: source this in ~/.zshrc.\nautoload -U +X compinit "
           "bashcompinit\ncompinit\nbashcompinit\n" +
           bash_script(commands);
  }
  NMOE_CHECK(shell == "fish", "completion for {}", shell);
  return "# Completion of n: source this in ~/.config/fish/config.fish.\n" + fish_script(commands);
}

}  // namespace nmoe::cli
