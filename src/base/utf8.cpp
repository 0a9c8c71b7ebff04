#include "base/utf8.h"

namespace nmoe {

bool is_utf8(std::string_view text) {
  for (size_t place = 0; place < text.size();) {
    const size_t length = char_at(text, place).length;
    if (length == 1 && static_cast<unsigned char>(text[place]) >= 0x80) return false;
    place += length;
  }
  return true;
}

std::string as_utf8(std::string_view bytes) {
  std::string text;
  for_each_char(bytes, [&](uint32_t code, size_t place, size_t length) {
    const bool is_bad = code == kInvalidChar && length == 1;
    text += is_bad ? std::string_view("\uFFFD") : bytes.substr(place, length);
  });
  return text;
}

}  // namespace nmoe
