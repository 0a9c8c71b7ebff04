#include "train/loop/pace.h"

#include <algorithm>

namespace nmoe {

void Pace::settle(int64_t steps) {
  settling_ = std::max(settling_, steps);
  measures_ = measures_ || steps == kFirstSteps;
  set(/*pausing=*/false);
}

// Steps are enqueued ahead: one begins when the one in front of it ends, if not later.
void Pace::step_ended() {
  const Clock::time_point now = Clock::now();
  const auto took = std::chrono::duration_cast<Milliseconds>(now - (is_settling() ? begin_ : end_));
  end_ = now;
  // The one behind a checkpoint waits for its copies, and says nothing.
  if (!is_settling() || (settling_ == 1 && measures_)) longest_ = std::max(longest_, took);
  if (!is_settling()) return;
  --settling_;
  if (is_settling()) return;
  measures_ = false;
  set(/*pausing=*/false);
}

void Pace::set(bool pausing) const {
  const Milliseconds timeout = std::chrono::seconds(config_.timeout_s), stall = std::chrono::seconds(config_.stall_s);
  const bool is_long = pausing || is_settling() || config_.stall_s == 0;
  engine_.set_patience(is_long ? timeout : std::min(timeout, stall + 2 * longest_));
}

}  // namespace nmoe
