// UTF-8 and the classes of characters that split patterns need.
//
// The classes are those of one version of Unicode whatever library is installed (unicode_categories.inc): a word's
// bounds must not depend on the machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace nmoe {

// Sets of characters, as bits. The first ten are disjoint and named as in regular expressions.
using CharClass = uint16_t;
inline constexpr CharClass kLu = 1 << 0;
inline constexpr CharClass kLl = 1 << 1;
inline constexpr CharClass kLt = 1 << 2;
inline constexpr CharClass kLm = 1 << 3;
inline constexpr CharClass kLo = 1 << 4;
inline constexpr CharClass kMark = 1 << 5;      // \p{M}
inline constexpr CharClass kNumber = 1 << 6;    // \p{N}
inline constexpr CharClass kPunct = 1 << 7;     // \p{P}
inline constexpr CharClass kSymbol = 1 << 8;    // \p{S}
inline constexpr CharClass kSpace = 1 << 9;     // \s: Unicode's White_Space
inline constexpr CharClass kNewline = 1 << 10;  // [\r\n], which are kSpace too
inline constexpr CharClass kLetter = kLu | kLl | kLt | kLm | kLo;

inline constexpr char32_t kNumCodePoints = 0x110000;

// Unicode's general categories, in its own abbreviations; Cn is what is not assigned.
// NOLINTBEGIN(readability-identifier-naming)
enum class Category : uint8_t {
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,  // letters
  Mn,
  Mc,
  Me,  // marks
  Nd,
  Nl,
  No,  // numbers
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,  // punctuation
  Sm,
  Sc,
  Sk,
  So,  // symbols
  Zs,
  Zl,
  Zp,  // separators
  Cc,
  Cf,
  Cs,
  Co,
  Cn,  // others
};
// NOLINTEND(readability-identifier-naming)

// All code points, as runs of one category: each goes up to the next one's first.
struct CategoryRun {
  char32_t first;
  Category category;
};
std::span<const CategoryRun> category_runs();

// The class of a code point; 0 for controls, formats, and private or unassigned ones.
CharClass class_of(char32_t code_point);

// class_of(), of ASCII.
inline constexpr std::array<CharClass, 128> kAsciiClasses = [] {
  std::array<CharClass, 128> classes{};
  for (char32_t c = 0x21; c < 0x7F; ++c) classes[c] = kPunct;
  for (const char32_t c : {U'$', U'+', U'<', U'=', U'>', U'^', U'`', U'|', U'~'}) classes[c] = kSymbol;
  for (char32_t c = '0'; c <= '9'; ++c) classes[c] = kNumber;
  for (char32_t c = 'A'; c <= 'Z'; ++c) classes[c] = kLu;
  for (char32_t c = 'a'; c <= 'z'; ++c) classes[c] = kLl;
  for (const char32_t c : {U' ', U'\t', U'\v', U'\f'}) classes[c] = kSpace;
  for (const char32_t c : {U'\r', U'\n'}) classes[c] = kSpace | kNewline;
  return classes;
}();

// A character of valid UTF-8.
struct Character {
  char32_t code_point;
  size_t size;  // in bytes, 1 to 4
};

// The character at `p`, which must be valid UTF-8.
inline Character decode_utf8(const char* p) {
  const auto byte = [p](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// Appends the character.
void append_utf8(char32_t code_point, std::string& text);

// The size of the longest prefix of `text` that is valid UTF-8 (RFC 3629: no overlong forms, no surrogates).
size_t valid_utf8_size(std::string_view text);

}  // namespace nmoe
