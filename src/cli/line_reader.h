// Lines that a person types, or that come through a pipe.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace nmoe::cli {

// Reads standard input. Where that and standard error are a terminal, a line can be edited (Emacs' keys, or as
// ~/.editrc says) and earlier ones come back by the arrow keys and Ctrl-R; they are kept in memory only. While a line
// is being typed, Ctrl-C ends the program, with the terminal as it was. One at a time, used by one thread.
class LineReader {
 public:
  LineReader();
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool at_terminal() const { return editor_ != nullptr; }

  // The next line without its end; nothing at the end of input (Ctrl-D on an empty line). `prompt` is shown on
  // terminals.
  std::optional<std::string> read(const std::string& prompt);

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;
};

}  // namespace nmoe::cli
