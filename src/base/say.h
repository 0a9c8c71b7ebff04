// Standard error, for what a person is to see and no work may depend on.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/text.h"

namespace nmoe {

// What cannot be written there, since its disk is full, its reader gone or the descriptor closed, is lost without a
// word: there is nowhere left to say so, and weights must not be lost with it.
void write_to_standard_error(std::string_view text);

// The same for messages, which may quote what others wrote: nothing in them steers a terminal.
template <class... Values>
void say(fmt::format_string<Values...> format, Values&&... values) {
  write_to_standard_error(terminal_safe(fmt::format(format, std::forward<Values>(values)...)));
}

}  // namespace nmoe
