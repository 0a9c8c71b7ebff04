#include "mon/grid.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

namespace nmoe::mon {
namespace {

// Columns that a character takes; 0 of those that have no place of their own.
int width_of(char32_t glyph) {
  if (glyph >= 0x20 && glyph < 0x7f) return 1;
  const auto code = static_cast<utf8proc_int32_t>(glyph);
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_CN:  // not assigned
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:  // formats, which turn the direction of writing among others
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return 0;
    default:
      return utf8proc_charwidth(code);
  }
}

void append_utf8(std::string& text, char32_t glyph) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(glyph), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

}  // namespace

Grid::Grid(int width, int height)
    : width_(std::max(0, width)),
      height_(std::max(0, height)),
      cells_(static_cast<size_t>(width_) * static_cast<size_t>(height_)) {}

void Grid::set(int x, int y, char32_t glyph, Style style) {
  if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
  cells_[index(x, y)] = {glyph, style};
}

int Grid::put(int x, int y, std::string_view text, Style style, int max_width) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const int end = max_width < width_ - x ? x + max_width : width_;
  const auto place = [&](char32_t glyph) {  // false: there is no room
    int width = width_of(glyph);
    if (width != 1 && width != 2) {
      glyph = U'?';
      width = 1;
    }
    if (x + width > end) return false;
    set(x, y, glyph, style);
    if (width == 2) set(x + 1, y, 0, style);
    x += width;
    return true;
  };
  for (size_t i = 0; i < text.size();) {
    utf8proc_int32_t code = 0;
    const utf8proc_ssize_t size = utf8proc_iterate(bytes + i, static_cast<utf8proc_ssize_t>(text.size() - i), &code);
    i += size > 0 ? static_cast<size_t>(size) : 1;
    const auto glyph = size > 0 ? static_cast<char32_t>(code) : U'?';
    if (glyph == U'\n' || glyph == U'\t') {
      if (!place(U' ')) break;
    } else if (glyph < 0x20 || (glyph >= 0x7f && glyph < 0xa0)) {
      if (!std::ranges::all_of(fmt::format("\\x{:02x}", code),
                               [&](char c) { return place(static_cast<char32_t>(c)); })) {
        break;
      }
    } else if (!place(glyph)) {
      break;
    }
  }
  return x;
}

void Grid::fill(Rect rect, Style style) {
  for (int y = rect.y; y < rect.y + rect.height; ++y) {
    for (int x = rect.x; x < rect.x + rect.width; ++x) set(x, y, U' ', style);
  }
}

std::string Grid::line(int y) const {
  std::string text;
  for (int x = 0; x < width_; ++x) {
    if (at(x, y).glyph != 0) append_utf8(text, at(x, y).glyph);
  }
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::string Grid::text() const {
  std::string text;
  for (int y = 0; y < height_; ++y) text += line(y) + '\n';
  return text;
}

}  // namespace nmoe::mon
