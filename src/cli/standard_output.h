// Standard output. What is printed may quote texts that a model wrote, a file holds or somebody named something by.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <string_view>
#include <utility>

#include "base/text.h"

namespace nmoe::cli {

// For reports: nothing in them steers a terminal, wherever they go.
template <class... Values>
void print(fmt::format_string<Values...> format, Values&&... values) {
  fmt::print("{}", terminal_safe(fmt::format(format, std::forward<Values>(values)...)));
}

// For texts themselves, which have no part of a UTF-8 character at their ends: as they are; on a terminal, with what
// would steer it shown instead.
inline void print_text(std::string_view text) {
  static const bool at_terminal = ::isatty(STDOUT_FILENO) == 1;
  if (at_terminal) {
    print("{}", text);
  } else {
    fmt::print("{}", text);
  }
}

}  // namespace nmoe::cli
