// Characters and sets of them in PCRE2's words.
#pragma once

#include <string>

#include "data/tokenizer/code_point_set.h"

namespace nmoe {

// A pattern that matches one character of `set`, or, if negated, one that is not in it. Large sets are said with
// properties, which PCRE2 looks up at once, and with the ranges in which its Unicode differs from ours. With
// `ignore_case` the pattern is for use under (?i), which takes other cases of the characters in the set too.
std::string pcre2_class(const CodePointSet& set, bool negated, bool ignore_case);

// A pattern that matches this character.
std::string pcre2_character(char32_t character);

}  // namespace nmoe
