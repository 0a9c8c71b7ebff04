// Arithmetic by which keys of a sweep follow from others.
#pragma once

#include <functional>
#include <string_view>

namespace nmoe {

// The value of `text` in double precision: numbers, names (letters, digits, "_" and "."; `value_of` has their values),
// + - * / ^ (to the right, before a sign), parentheses, sqrt(x), log2(x), round(x), floor(x), ceil(x), min(x, y) and
// max(x, y). Error (usage): what is none of these, naming it and its column; a value that is not finite; what
// `value_of` throws.
double evaluate(std::string_view text, const std::function<double(std::string_view)>& value_of);

}  // namespace nmoe
