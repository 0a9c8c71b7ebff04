// The program's command line: which commands there are and what each takes.
#pragma once

#include <functional>
#include <memory>

namespace nmoe::cli {

class CommandLine {
 public:
  CommandLine();
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Reads a process's arguments, and touches no files. What they ask for happens when what is returned is called, while
  // this object lives. Error (usage) saying what is wrong with them. Once.
  std::function<void()> parse(int argc, const char* const* argv);

 private:
  class Commands;
  std::unique_ptr<Commands> commands_;
};

}  // namespace nmoe::cli
