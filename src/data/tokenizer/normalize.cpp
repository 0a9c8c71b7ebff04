#include "data/tokenizer/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace nmoe {
namespace {

// No character below U+0300 changes or combines with one before it, and UTF-8 begins U+0300 and all above with such a
// byte.
constexpr unsigned char kFirstLead = 0xCC;

void append_nfc(std::string_view valid, std::string& out) {
  struct Free {
    void operator()(utf8proc_uint8_t* text) const { std::free(text); }
  };
  utf8proc_uint8_t* result = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()), static_cast<utf8proc_ssize_t>(valid.size()),
                   &result, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(result);
  NMOE_CHECK(size >= 0, "utf8proc_map of {} bytes: {}", valid.size(), utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& storage) {
  const auto may_change = [](char c) { return static_cast<unsigned char>(c) >= kFirstLead; };
  if (std::ranges::none_of(text, may_change)) return text;
  storage.clear();
  while (!text.empty()) {
    const size_t valid = valid_utf8_size(text);
    if (valid > 0) append_nfc(text.substr(0, valid), storage);
    text.remove_prefix(valid);
    if (text.empty()) break;
    storage += text.front();
    text.remove_prefix(1);
  }
  return storage;
}

}  // namespace nmoe
