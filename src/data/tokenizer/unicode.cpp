#include "data/tokenizer/unicode.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "base/error.h"

namespace nmoe {
namespace {

using enum Category;

constexpr CategoryRun kRuns[] = {
#include "data/tokenizer/unicode_categories.inc"
};

constexpr CharClass class_of_category(Category category) {
  if (category <= Lo) return static_cast<CharClass>(1U << static_cast<unsigned>(category));
  if (category <= Me) return kMark;
  if (category <= No) return kNumber;
  if (category <= Po) return kPunct;
  if (category <= So) return kSymbol;
  return category <= Zp ? kSpace : 0;
}

// Classes by code point, in pages of which equal ones are kept once.
class ClassTable {
 public:
  ClassTable() {
    std::vector<CharClass> classes(kNumCodePoints);
    for (size_t i = 0; i < std::size(kRuns); ++i) {
      const char32_t end = i + 1 < std::size(kRuns) ? kRuns[i + 1].first : kNumCodePoints;
      std::fill(classes.begin() + kRuns[i].first, classes.begin() + end, class_of_category(kRuns[i].category));
    }
    for (const char32_t space : {U'\t', U'\v', U'\f', U'\u0085'}) classes[space] = kSpace;  // by category controls
    for (const char32_t line_end : {U'\r', U'\n'}) classes[line_end] = kSpace | kNewline;
    for (size_t page = 0; page < page_starts_.size(); ++page) {
      const auto begin = classes.begin() + static_cast<std::ptrdiff_t>(page * kPageSize);
      size_t start = 0;
      const auto same = [&] {
        return std::equal(begin, begin + kPageSize, pages_.begin() + static_cast<std::ptrdiff_t>(start));
      };
      while (start < pages_.size() && !same()) start += kPageSize;
      if (start == pages_.size()) pages_.insert(pages_.end(), begin, begin + kPageSize);
      page_starts_[page] = static_cast<uint16_t>(start);
    }
    NMOE_CHECK(pages_.size() <= 1 << 16, "{} classes in pages", pages_.size());
  }

  CharClass at(char32_t code_point) const {
    return pages_[page_starts_[code_point / kPageSize] + code_point % kPageSize];
  }

 private:
  static constexpr size_t kPageSize = 128;
  std::array<uint16_t, kNumCodePoints / kPageSize> page_starts_;
  std::vector<CharClass> pages_;
};

// Bytes that `text` begins with and that are no ASCII, as one valid character; 0 if they are none.
size_t character_size(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const int lead = byte(0);
  if (lead >= 0xC2 && lead < 0xE0) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead < 0xF0) {
    const bool overlong = lead == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = lead == 0xED && byte(1) >= 0xA0;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead < 0xF5) {
    const bool overlong = lead == 0xF0 && byte(1) < 0x90;
    const bool beyond = lead == 0xF4 && byte(1) >= 0x90;
    return continues(1) && continues(2) && continues(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::span<const CategoryRun> category_runs() { return kRuns; }

CharClass class_of(char32_t code_point) {
  static const ClassTable table;
  return table.at(code_point);
}

void append_utf8(char32_t code_point, std::string& text) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) return add(code_point);
  if (code_point < 0x800) {
    add(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      add(0xE0 | code_point >> 12);
    } else {
      add(0xF0 | code_point >> 18);
      add(0x80 | (code_point >> 12 & 0x3F));
    }
    add(0x80 | (code_point >> 6 & 0x3F));
  }
  add(0x80 | (code_point & 0x3F));
}

size_t valid_utf8_size(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    constexpr uint64_t kHighBits = 0x8080808080808080;
    uint64_t eight = kHighBits;
    if (i + sizeof(eight) <= text.size()) std::memcpy(&eight, text.data() + i, sizeof(eight));
    if ((eight & kHighBits) == 0) {
      i += sizeof(eight);
      continue;
    }
    const size_t size = static_cast<unsigned char>(text[i]) < 0x80 ? 1 : character_size(text.substr(i));
    if (size == 0) break;
    i += size;
  }
  return i;
}

}  // namespace nmoe
