// Patterns of Oniguruma, the regular expressions of Hugging Face's tokenizers, in PCRE2's words.
#pragma once

#include <string>
#include <string_view>

namespace nmoe {

// What PCRE2 (UTF, \n alone ends lines, ^ and $ at line ends) matches exactly where Oniguruma, in its own syntax,
// matches `pattern`. Groups capture nothing, and classes of characters (\w, \d, \s, \b, \p{...}, [[:alpha:]] and the
// like) are spelled out as data/tokenizer/unicode_properties.h has them.
//
// Throws std::invalid_argument, with what in the pattern is not supported as a part of a sentence, for what Oniguruma
// refuses itself, what PCRE2 has no counterpart of, what makes a search take time as the text is long (references,
// calls of groups), and what tokenizers do not use: options but i and m, conditions, callouts, \K, \X, \y, bytes above
// 0x7F in hexadecimal or octal, counts above 1,000, and under (?i) letters that Oniguruma compares with pairs of
// letters ("ss" and "ß").
std::string oniguruma_to_pcre2(std::string_view pattern);

}  // namespace nmoe
