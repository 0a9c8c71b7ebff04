// The number that a written answer gives, read as lm-evaluation-harness's gsm8k does: "$" and "," are left out, and a
// "." at the end. Two of them are compared as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nmoe {

// Behind the first "#### " that a number follows: #### (\-?[0-9\.\,]+)
std::optional<std::string> strict_number(std::string_view answer);
// The last one of all: (-?[$0-9.,]{2,})|(-?[0-9]+)
std::optional<std::string> flexible_number(std::string_view answer);
// What a data set's own answer gives: the strict number, or where it marks none the last.
std::optional<std::string> expected_number(std::string_view answer);

}  // namespace nmoe
