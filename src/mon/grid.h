// A screen of characters: what is drawn on, compared in tests, and shown by a terminal (terminal.h).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe::mon {

// What a character means, not how it looks: that is the terminal's affair, with colours or without.
enum class Style : uint8_t {
  kPlain,
  kDim,    // frames, axes, what is between a curve's extremes
  kTitle,  // the first line
  kLabel,  // names of values and panels
  kGood,
  kWarn,
  kBad,
  kCurve,
  kCool,      // less than its share
  kHot,       // more than its share
  kSelected,  // what keys act on
  kBar,       // the line of keys
};

struct Cell {
  char32_t glyph = U' ';  // 0: the right half of a wide one
  Style style = Style::kPlain;
};

struct Rect {
  int x = 0, y = 0, width = 0, height = 0;
};

class Grid {
 public:
  Grid(int width, int height);

  int width() const { return width_; }
  int height() const { return height_; }
  Rect all() const { return {0, 0, width_, height_}; }
  const Cell& at(int x, int y) const { return cells_[index(x, y)]; }

  // What is outside is left out, here and below.
  void set(int x, int y, char32_t glyph, Style style = Style::kPlain);
  // UTF-8, in at most `max_width` columns; returns the column behind it. Whatever it is, it steers no terminal: control
  // characters are shown as \x1b, marks that combine or turn the direction of writing, and broken UTF-8, as '?'.
  int put(int x, int y, std::string_view text, Style style = Style::kPlain,
          int max_width = std::numeric_limits<int>::max());
  void fill(Rect rect, Style style);  // with blanks

  std::string line(int y) const;  // UTF-8, without blanks at the end
  std::string text() const;       // all lines, ended

 private:
  size_t index(int x, int y) const {
    return static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x);
  }

  int width_;
  int height_;
  std::vector<Cell> cells_;
};

}  // namespace nmoe::mon
