// Standard output, for texts that a model wrote or a file holds.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <string_view>

#include "base/text.h"

namespace nmoe::cli {

// Prints `text`, which has no part of a UTF-8 character at its ends, as it is; on a terminal, with what would steer it
// shown instead.
inline void print_text(std::string_view text) {
  static const bool at_terminal = ::isatty(STDOUT_FILENO) == 1;
  if (at_terminal) {
    fmt::print("{}", terminal_safe(text));
  } else {
    fmt::print("{}", text);
  }
}

}  // namespace nmoe::cli
