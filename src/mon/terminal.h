// The terminal on standard output: shows grids, takes keys, and is given back as it was however the program ends but by
// SIGKILL. The one place that knows ncurses.
#pragma once

#include <chrono>

#include "mon/grid.h"

namespace nmoe::mon {

enum class Key : uint8_t {
  kNone,  // the time was up, or the terminal has another size
  kCharacter,
  kUp,
  kDown,
  kLeft,
  kRight,
  kPageUp,
  kPageDown,
  kHome,
  kEnd,
  kEnter,
  kEscape,
  kTab,
  kBacktab,
  kBackspace,
  kF1,
  kF2,
  kF3,
  kF4,
  kF5,
  kF6,
  kF10,
  kGone,  // there is no terminal any more
};
struct KeyPress {
  Key key = Key::kNone;
  char32_t character = 0;  // of kCharacter
};

class Terminal {
 public:
  // `colour` false: bold, dim and reversed characters alone. In a locale whose characters are not UTF-8 others take the
  // place of what ASCII has not. Error (usage) where standard output is no terminal, or one that is not known. One at a
  // time.
  explicit Terminal(bool colour);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int width() const;
  int height() const;
  void show(const Grid& grid);
  KeyPress read_key(std::chrono::milliseconds timeout);

 private:
  bool is_utf8_ = false;
  bool has_colour_ = false;
};

}  // namespace nmoe::mon
