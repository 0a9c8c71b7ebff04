// Strings of templates: code points, as Python counts them, each with a mark that tells where it came from.
//
// A character of the template itself, or of the special tokens it is given, is unmarked; one that came with the data (a
// message) bears kFromData. All operations pass the mark on and none looks at it, so that in the rendered text it is
// known which characters the template vouches for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe::jinja {

using Text = std::u32string;
using TextView = std::u32string_view;

inline constexpr char32_t kFromData = 0x80000000;
inline constexpr char32_t code_point(char32_t marked) { return marked & ~kFromData; }

// UTF-8 to code points, each marked with `mark` (0 or kFromData). Bytes that are no UTF-8 become U+FFFD.
Text decode(std::string_view utf8, char32_t mark);
// Back to UTF-8, without marks.
std::string encode(TextView text);

// Python's str.isspace of one character.
bool is_space(char32_t character);

// What follows ignores marks.
bool equal(TextView a, TextView b);
int compare(TextView a, TextView b);  // < 0, 0 or > 0, by code points
// The first (last) place of `part` at or after `begin` (at all); Text::npos where there is none.
size_t find(TextView text, TextView part, size_t begin = 0);
size_t rfind(TextView text, TextView part);
bool starts_with(TextView text, TextView part);
bool ends_with(TextView text, TextView part);

enum class Side { kLeft, kRight, kBoth };
// Without what is in `characters` at the ends; whitespace where that is null.
TextView strip(TextView text, Side side, const Text* characters = nullptr);

// Python's str.split and str.rsplit: at whitespace where `separator` is null, else at each of it (not empty); at most
// `limit` cuts unless that is negative.
std::vector<Text> split(TextView text, const Text* separator, long limit);
std::vector<Text> rsplit(TextView text, const Text* separator, long limit);

// At most `limit` replacements unless that is negative. An empty `from` is before every character and at the end.
Text replace(TextView text, TextView from, TextView to, long limit);

Text upper(TextView text);  // by single characters: ß stays
Text lower(TextView text);

}  // namespace nmoe::jinja
