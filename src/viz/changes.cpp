#include "viz/changes.h"

namespace nmoe {

void Changes::add(bool list, std::span<const Key> runs) {
  if (!list && runs.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    ++clock_;
    if (list) list_ = clock_;
    for (const Key& run : runs) runs_[run] = clock_;
  }
  wake_.notify_all();
}

void Changes::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
}

Changes::Seen Changes::wait(uint64_t seen, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, patience, [&] { return stopped_ || clock_ > seen; });
  Seen news{.until = clock_, .stopped = stopped_, .list = list_ > seen};
  for (const auto& [run, when] : runs_) {
    if (when > seen) news.runs.push_back(run);
  }
  return news;
}

uint64_t Changes::now() {
  const std::lock_guard lock(mutex_);
  return clock_;
}

}  // namespace nmoe
