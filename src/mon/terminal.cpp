#include "mon/terminal.h"

#include <langinfo.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#define NCURSES_WIDECHAR 1
#define NCURSES_NOMACROS 1
#include <curses.h>

#include "base/error.h"

namespace nmoe::mon {
namespace {

// A signal by which the program has a fault: what follows is written by its handler, so it is made before.
constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
struct Restore {
  termios settings;
  char text[256];
  size_t size = 0;
} restore;

void give_back_and_die(int signal) {
  ::tcsetattr(STDOUT_FILENO, TCSANOW, &restore.settings);
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, restore.text, restore.size);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void prepare_for_faults() {
  std::string text;
  for (const char* name : {"sgr0", "op", "rmkx", "cnorm", "rmcup"}) {
    const char* sequence = ::tigetstr(name);
    if (sequence == nullptr || sequence == reinterpret_cast<const char*>(-1)) continue;
    // Without "$<5>", by which terminfo asks for a pause.
    for (std::string_view rest = sequence; !rest.empty();) {
      const size_t pause = std::min(rest.find("$<"), rest.size());
      text += rest.substr(0, pause);
      const size_t end = rest.find('>', pause);
      rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    }
  }
  restore.size = std::min(text.size(), sizeof(restore.text));
  std::memcpy(restore.text, text.data(), restore.size);
  for (const int signal : kFaults) std::signal(signal, give_back_and_die);
}

struct Look {
  Style style;
  attr_t mono;      // attributes without colours
  attr_t coloured;  // beside a colour
  short foreground;
  short background;  // -1: the terminal's own
};
constexpr std::array kLooks = {
    Look{Style::kPlain, A_NORMAL, A_NORMAL, -1, -1},
    Look{Style::kDim, A_DIM, A_DIM, -1, -1},
    Look{Style::kTitle, A_REVERSE | A_BOLD, A_BOLD, COLOR_WHITE, COLOR_BLUE},
    Look{Style::kLabel, A_BOLD, A_NORMAL, COLOR_CYAN, -1},
    Look{Style::kGood, A_NORMAL, A_NORMAL, COLOR_GREEN, -1},
    Look{Style::kWarn, A_BOLD, A_NORMAL, COLOR_YELLOW, -1},
    Look{Style::kBad, A_REVERSE, A_BOLD, COLOR_RED, -1},
    Look{Style::kCurve, A_BOLD, A_BOLD, COLOR_GREEN, -1},
    Look{Style::kCool, A_DIM, A_NORMAL, COLOR_BLUE, -1},
    Look{Style::kHot, A_BOLD, A_BOLD, COLOR_YELLOW, -1},
    Look{Style::kSelected, A_REVERSE, A_NORMAL, COLOR_BLACK, COLOR_CYAN},
    Look{Style::kBar, A_REVERSE, A_NORMAL, COLOR_BLACK, COLOR_CYAN},
};

const Look& look_of(Style style) { return kLooks[static_cast<size_t>(style)]; }

// The nearest of ASCII.
char32_t ascii_of(char32_t glyph) {
  if (glyph < 0x80) return glyph;
  if (glyph >= 0x2800 && glyph < 0x2900) {  // braille: its upper half, its lower, or both
    const auto dots = glyph - 0x2800;
    const bool upper = (dots & 0x1b) != 0, lower = (dots & 0xe4) != 0;
    return upper && lower ? U':' : upper ? U'\'' : lower ? U'.' : U' ';
  }
  static constexpr std::u32string_view kFrom = U"─│┤·░▒▓█×◆▏", kTo = U"-||.-=%#xo|";
  const size_t found = kFrom.find(glyph);
  return found == std::u32string_view::npos ? U'?' : kTo[found];
}

Key key_of(wint_t code) {
  switch (code) {
    case KEY_UP:
      return Key::kUp;
    case KEY_DOWN:
      return Key::kDown;
    case KEY_LEFT:
      return Key::kLeft;
    case KEY_RIGHT:
      return Key::kRight;
    case KEY_PPAGE:
      return Key::kPageUp;
    case KEY_NPAGE:
      return Key::kPageDown;
    case KEY_HOME:
      return Key::kHome;
    case KEY_END:
      return Key::kEnd;
    case KEY_ENTER:
      return Key::kEnter;
    case KEY_BTAB:
      return Key::kBacktab;
    case KEY_BACKSPACE:
      return Key::kBackspace;
    case KEY_F(1):
      return Key::kF1;
    case KEY_F(2):
      return Key::kF2;
    case KEY_F(3):
      return Key::kF3;
    case KEY_F(4):
      return Key::kF4;
    case KEY_F(5):
      return Key::kF5;
    case KEY_F(6):
      return Key::kF6;
    case KEY_F(10):
      return Key::kF10;
    default:
      return Key::kNone;
  }
}

}  // namespace

Terminal::Terminal(bool colour) {
  if (::isatty(STDOUT_FILENO) == 0 || ::isatty(STDIN_FILENO) == 0) {
    throw usage_error("n mon needs a terminal", "n runs show and n runs plot print the same once");
  }
  std::setlocale(LC_CTYPE, "");
  is_utf8_ = std::string_view(::nl_langinfo(CODESET)) == "UTF-8";
  ::tcgetattr(STDOUT_FILENO, &restore.settings);
  const char* name = std::getenv("TERM");
  if (name == nullptr || ::newterm(nullptr, stdout, stdin) == nullptr) {
    throw usage_error(fmt::format("the terminal '{}' is not known here", name == nullptr ? "" : name),
                      "set TERM to one that is, say xterm");
  }
  prepare_for_faults();
  ::set_escdelay(25);
  ::cbreak();
  ::noecho();
  ::nonl();
  ::intrflush(stdscr, FALSE);
  ::keypad(stdscr, TRUE);
  ::curs_set(0);
  has_colour_ = colour && ::has_colors();
  if (!has_colour_) return;
  ::start_color();
  ::use_default_colors();
  for (const Look& look : kLooks) {
    ::init_pair(static_cast<short>(static_cast<int>(look.style) + 1), look.foreground, look.background);
  }
}

Terminal::~Terminal() {
  ::endwin();
  for (const int signal : kFaults) std::signal(signal, SIG_DFL);
}

int Terminal::width() const { return getmaxx(stdscr); }
int Terminal::height() const { return getmaxy(stdscr); }

void Terminal::show(const Grid& grid) {
  for (int y = 0; y < grid.height(); ++y) {
    for (int x = 0; x < grid.width(); ++x) {
      const Cell& cell = grid.at(x, y);
      if (cell.glyph == 0) continue;
      const Look& look = look_of(cell.style);
      const auto pair = static_cast<short>(has_colour_ ? static_cast<int>(cell.style) + 1 : 0);
      const wchar_t glyph[2] = {static_cast<wchar_t>(is_utf8_ ? cell.glyph : ascii_of(cell.glyph)), L'\0'};
      cchar_t character;
      ::setcchar(&character, glyph, has_colour_ ? look.coloured : look.mono, pair, nullptr);
      ::mvadd_wch(y, x, &character);
    }
  }
  ::refresh();
}

KeyPress Terminal::read_key(std::chrono::milliseconds timeout) {
  ::timeout(static_cast<int>(timeout.count()));
  wint_t code = 0;
  const int kind = ::get_wch(&code);
  if (kind == ERR) {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const bool gone = ::poll(&input, 1, 0) > 0 && (input.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
    return {gone ? Key::kGone : Key::kNone};
  }
  if (kind == KEY_CODE_YES) return {key_of(code)};
  switch (code) {
    case '\r':
    case '\n':
      return {Key::kEnter};
    case '\t':
      return {Key::kTab};
    case 27:
      return {Key::kEscape};
    case 8:
    case 127:
      return {Key::kBackspace};
    default:
      return {Key::kCharacter, static_cast<char32_t>(code)};
  }
}

}  // namespace nmoe::mon
