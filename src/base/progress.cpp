#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/say.h"
#include "base/text.h"

namespace nmoe {
namespace {

constexpr size_t kBarWidth = 24;  // characters
constexpr size_t kLeastBarWidth = 8;
constexpr auto kRedrawInterval = std::chrono::milliseconds(100);

// Of the terminal on standard error, which may change.
size_t num_columns() {
  struct winsize size {};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

ProgressLine::ProgressLine(std::string_view label, std::string_view unit, int64_t total, int64_t start)
    : label_(label), unit_(unit), total_(total), start_(start), terminal_(isatty(STDERR_FILENO) == 1) {}

std::string ProgressLine::render(int64_t done, std::string_view detail, size_t bar_width) const {
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
  std::string eta = "?";
  if (done > start_) {
    const double each = elapsed / static_cast<double>(done - start_);
    const double left = each * static_cast<double>(total_ - done);
    eta = left < 1.0 ? "0s" : human_seconds(left);
  }
  std::string bar;
  if (bar_width > 0) {
    const auto width = static_cast<int64_t>(bar_width);
    const int64_t filled = total_ > 0 ? width * std::clamp<int64_t>(done, 0, total_) / total_ : width;
    bar = fmt::format(" [{:<{}}]", std::string(static_cast<size_t>(filled), '='), bar_width);
  }
  return fmt::format("{}{} {} {}/{}  {}  ETA {}", label_, bar, unit_, done, total_, detail, eta);
}

std::string ProgressLine::text(int64_t done, std::string_view detail) const { return render(done, detail, 0); }

void ProgressLine::erase() {
  if (terminal_ && drawn_) write_to_standard_error("\r\033[K");
}

void ProgressLine::update(int64_t done, std::string_view detail, bool milestone) {
  if (terminal_) {
    const auto now = Clock::now();
    if (now - last_draw_ < kRedrawInterval && done < total_) return;
    last_draw_ = now;
    erase();
    // A line that wraps would be redrawn below itself.
    const size_t columns = num_columns(), used = text(done, detail).size() + 4;
    const size_t bar = used + kLeastBarWidth <= columns ? std::min(kBarWidth, columns - used) : 0;
    say("{}", render(done, detail, bar).substr(0, columns - 1));
    drawn_ = true;
  } else if (milestone) {
    say("{}\n", text(done, detail));
  }
}

void ProgressLine::message(std::string_view text) {
  erase();
  say("{}\n", text);
  drawn_ = false;
  last_draw_ = {};
}

void ProgressLine::finish() {
  if (terminal_ && drawn_) say("\n");
  drawn_ = false;
}

}  // namespace nmoe
