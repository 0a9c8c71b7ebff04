#include "infer/utf8_stream.h"

#include <algorithm>
#include <utility>

namespace nmoe {
namespace {

// Length of the character that starts with `lead`, 1 for anything that starts none.
size_t character_length(unsigned char lead) {
  if (lead >= 0xF0 && lead < 0xF8) return 4;
  if (lead >= 0xE0) return lead < 0xF0 ? 3 : 1;
  return lead >= 0xC0 ? 2 : 1;
}

// How many bytes at the end of `text` are the beginning of a character.
size_t unfinished_tail(const std::string& text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) == 0x80U) continue;  // a continuation: its lead is further back
    return character_length(byte) > back ? back : 0;
  }
  return 0;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  const size_t ready = pending_.size() - unfinished_tail(pending_);
  std::string result = pending_.substr(0, ready);
  pending_.erase(0, ready);
  return result;
}

std::string Utf8Stream::flush() { return std::exchange(pending_, {}); }

}  // namespace nmoe
