// Standard error, for what a person is to see and no work may depend on.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace nmoe {

// What cannot be written there, since its disk is full, its reader gone or the descriptor closed, is lost without a
// word: there is nowhere left to say so, and weights must not be lost with it.
template <class... Values>
void say(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::clearerr(stderr);  // the disk may have room again
}

}  // namespace nmoe
