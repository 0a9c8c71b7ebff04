// How long something is waited for, by a clock that leaves out what this process was stopped or starved meanwhile: then
// those who are waited for were, too.
#pragma once

#include <algorithm>
#include <chrono>

namespace nmoe {

class WaitClock {
 public:
  using Duration = std::chrono::steady_clock::duration;
  // Look at waited() at least so often. Of a longer gap, four times this counts.
  static constexpr std::chrono::milliseconds kSlice{100};

  void restart() { *this = {}; }
  Duration waited() {
    const auto now = std::chrono::steady_clock::now();
    waited_ += std::min<Duration>(now - last_, 4 * kSlice);
    last_ = now;
    return waited_;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  Duration waited_{};
};

}  // namespace nmoe
