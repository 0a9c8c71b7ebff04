#include "cli/line_reader.h"

#include <fmt/format.h>
#include <histedit.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "base/error.h"

namespace nmoe::cli {

struct LineReader::Editor {
  Editor() {
    // libedit reads characters of the locale. One of single bytes would cut UTF-8 apart, which is what models speak.
    std::setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    line = ::el_init("n", stdin, stderr, stderr);
    past = ::history_init();
    NMOE_CHECK(line != nullptr && past != nullptr, "no line editor");
    constexpr int kLines = 1000;
    HistEvent event;
    ::history(past, &event, H_SETSIZE, kLines);
    ::history(past, &event, H_SETUNIQUE, 1);
    ::el_set(line, EL_CLIENTDATA, this);
    ::el_set(line, EL_PROMPT, &prompt_of);
    ::el_set(line, EL_HIST, &::history, past);
    ::el_set(line, EL_SIGNAL, 1);  // other signals: gives the terminal back before one ends the program
    ::el_set(line, EL_EDITOR, "emacs");
    // Ctrl-C is a key while a line is typed: what a signal interrupts there depends on the thread that gets it.
    ::el_set(line, EL_SETTY, "-d", "intr=", nullptr);
    ::el_set(line, EL_ADDFN, "nmoe-interrupt", "give up the line", &interrupt);
    ::el_set(line, EL_BIND, "^C", "nmoe-interrupt", nullptr);
    ::el_set(line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    ::el_set(line, EL_BIND, "^W", "ed-delete-prev-word", nullptr);
    ::el_source(line, nullptr);
  }
  ~Editor() {
    ::el_end(line);
    ::history_end(past);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  static char* prompt_of(EditLine* line) {
    Editor* self = nullptr;
    ::el_get(line, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }

  static unsigned char interrupt(EditLine* line, int /*key*/) {
    Editor* self = nullptr;
    ::el_get(line, EL_CLIENTDATA, &self);
    self->interrupted = true;
    return CC_EOF;
  }

  EditLine* line;
  History* past;
  bool interrupted = false;
  std::string prompt;
};

LineReader::LineReader() {
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1) editor_ = std::make_unique<Editor>();
}

LineReader::~LineReader() = default;

std::optional<std::string> LineReader::read(const std::string& prompt) {
  std::string line;
  if (editor_ == nullptr) {
    if (!std::getline(std::cin, line)) return std::nullopt;
  } else {
    editor_->prompt = prompt;
    int size = 0;
    const char* typed = ::el_gets(editor_->line, &size);
    if (typed == nullptr || size <= 0) {
      fmt::print(stderr, "\n");  // what comes next begins a line of its own
      if (editor_->interrupted) std::raise(SIGINT);
      return std::nullopt;
    }
    line.assign(typed, static_cast<size_t>(size));
    HistEvent event;
    if (line.find_first_not_of(" \t\r\n") != std::string::npos) ::history(editor_->past, &event, H_ENTER, typed);
    if (line.back() == '\n') line.pop_back();
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

}  // namespace nmoe::cli
