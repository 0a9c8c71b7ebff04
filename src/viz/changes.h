// What has changed, for those who wait for it: each stream of events learns of every change once, however late it
// comes. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nmoe {

class Changes {
 public:
  using Key = std::pair<std::string, int64_t>;  // a run, and a rank of it

  void add(bool list, std::span<const Key> runs);
  void stop();  // nobody waits any more

  struct Seen {
    uint64_t until = 0;  // to be given to the next call
    bool stopped = false;
    bool list = false;      // the list of runs
    std::vector<Key> runs;  // that have recorded something
  };
  // What there is new since `seen`; waits for it for at most `patience`.
  Seen wait(uint64_t seen, std::chrono::milliseconds patience);
  uint64_t now();  // to begin with

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  uint64_t clock_ = 0;
  uint64_t list_ = 0;  // when it changed, by clock_
  std::map<Key, uint64_t> runs_;
  bool stopped_ = false;
};

}  // namespace nmoe
