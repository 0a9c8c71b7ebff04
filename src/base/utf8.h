// Walking over text that should be UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nmoe {

// Stands for a byte that is not part of a valid sequence.
inline constexpr uint32_t kInvalidChar = 0xFFFD;

struct Utf8Char {
  uint32_t code = kInvalidChar;
  size_t length = 1;  // bytes
};

// The character at `place` < text.size(). Overlong forms, surrogates and codes beyond U+10FFFF are not valid
// (Unicode 15, table 3-7).
inline Utf8Char char_at(std::string_view text, size_t place) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[place + i]); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() - place < length) return {};
  uint32_t code = first & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3FU);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {};
  return {code, length};
}

// Calls fn(code, place, length) for each character.
template <class Fn>
void for_each_char(std::string_view text, Fn&& fn) {
  for (size_t place = 0; place < text.size();) {
    const Utf8Char c = char_at(text, place);
    fn(c.code, place, c.length);
    place += c.length;
  }
}

bool is_utf8(std::string_view text);

// Bytes that are not UTF-8 become U+FFFD: JSON, databases and Python sources are UTF-8; names of files and what a model
// writes need not be.
std::string as_utf8(std::string_view bytes);

}  // namespace nmoe
