// The number that a written answer gives, read as lm-evaluation-harness's gsm8k does: "$", "," and a final
// "." are removed. Two numbers are compared as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nmoe {

// After the first "#### " that is followed by a number: #### (\-?[0-9\.\,]+)
std::optional<std::string> strict_number(std::string_view answer);
// The last one of all: (-?[$0-9.,]{2,})|(-?[0-9]+)
std::optional<std::string> flexible_number(std::string_view answer);
// The number of a data set's own answer: the strict one or, if none is marked, the last.
std::optional<std::string> expected_number(std::string_view answer);

}  // namespace nmoe
