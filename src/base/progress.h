// A progress line: redrawn in place on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace nmoe {

// Writes to standard error. Not thread-safe.
class ProgressLine {
 public:
  // `unit` names what is counted ("step", "MB"). Counting starts at `start`: earlier work is no part of the ETA.
  ProgressLine(std::string_view label, std::string_view unit, int64_t total, int64_t start = 0);
  ~ProgressLine() { finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // "train [=====>    ] step 120/800  <detail>  ETA 1m20s". On a terminal at most ten times a second, in one line of
  // it: the bar gets shorter or goes where there is no room; elsewhere one line for every call with `milestone`.
  void update(int64_t done, std::string_view detail, bool milestone);
  // A line of its own, above the bar on a terminal.
  void message(std::string_view text);
  void finish();  // ends the bar's line
  // The line as update() shows it, without the bar.
  std::string text(int64_t done, std::string_view detail) const;

 private:
  std::string render(int64_t done, std::string_view detail, size_t bar_width) const;
  void erase();

  using Clock = std::chrono::steady_clock;
  std::string label_;
  std::string unit_;
  int64_t total_;
  int64_t start_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_draw_{};
};

}  // namespace nmoe
