#include "data/tokenizer/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace nmoe {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};
constexpr Range kUnknown[] = {
#include "data/tokenizer/nfc_unknown.inc"
};

bool is_unknown(char32_t code_point) {
  static const std::vector<bool> unknown = [] {
    std::vector<bool> flags(kNumCodePoints);
    for (const auto& [first, last] : kUnknown) {
      std::fill(flags.begin() + first, flags.begin() + last + 1, true);
    }
    return flags;
  }();
  return unknown[code_point];
}

// No character below U+0300 changes or combines with one before it, and UTF-8 begins U+0300 and all above with such a
// byte.
constexpr unsigned char kFirstLead = 0xCC;

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

int combining_class(utf8proc_int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

// Appends the decomposition of valid UTF-8 in canonical order. utf8proc's own ordering takes quadratic time for a run
// of marks, as text may have of any length.
void decompose(std::string_view text, std::vector<utf8proc_int32_t>& out) {
  size_t marks = 0;  // at the end of `out`
  const auto order_marks = [&] {
    const auto begin = out.end() - static_cast<std::ptrdiff_t>(marks);
    if (marks > 1) std::ranges::stable_sort(begin, out.end(), {}, combining_class);
    marks = 0;
  };
  for (size_t i = 0; i < text.size();) {
    const Character character = decode_utf8(text.data() + i);
    i += character.size;
    std::array<utf8proc_int32_t, 8> parts;  // four are the most in any version of Unicode
    const auto num_parts = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character.code_point), parts.data(),
                                                   parts.size(), kOptions, nullptr);
    NMOE_CHECK(num_parts >= 0 && num_parts <= static_cast<utf8proc_ssize_t>(parts.size()), "U+{:04X}: {}",
               static_cast<uint32_t>(character.code_point), utf8proc_errmsg(num_parts));
    for (const auto part : std::span(parts).first(static_cast<size_t>(num_parts))) {
      if (combining_class(part) == 0) {
        order_marks();
        out.push_back(part);
      } else {
        out.push_back(part);
        ++marks;
      }
    }
  }
  order_marks();
}

void append_nfc(std::string_view known, std::string& out) {
  if (known.empty()) return;
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(known.size() + 1);  // and the zero that utf8proc_reencode adds
  decompose(known, code_points);
  const auto length = static_cast<utf8proc_ssize_t>(code_points.size());
  code_points.push_back(0);
  const auto size = utf8proc_reencode(code_points.data(), length, kOptions);  // in place
  NMOE_CHECK(size >= 0, "utf8proc_reencode of {} bytes: {}", known.size(), utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(code_points.data()), static_cast<size_t>(size));
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& storage) {
  const auto may_change = [](char c) { return static_cast<unsigned char>(c) >= kFirstLead; };
  if (std::ranges::none_of(text, may_change)) return text;
  storage.clear();
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, valid_utf8_size(text));
    size_t known = 0;  // begin of the known characters at hand
    for (size_t i = 0; i < valid.size();) {
      const Character character = decode_utf8(valid.data() + i);
      const size_t next = i + character.size;
      if (is_unknown(character.code_point)) {
        append_nfc(valid.substr(known, i - known), storage);
        storage += valid.substr(i, character.size);
        known = next;
      }
      i = next;
    }
    append_nfc(valid.substr(known), storage);
    text.remove_prefix(valid.size());
    if (text.empty()) break;
    storage += text.front();
    text.remove_prefix(1);
  }
  return storage;
}

}  // namespace nmoe
