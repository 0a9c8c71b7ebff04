// Writes a rank's metrics while training goes on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "track/metrics_file.h"

namespace nmoe {

// Queues values in memory; a thread of its own writes them every `flush_interval_s` in one short
// opening of the file, so that viewers can read it in between. While a viewer has it open, or it cannot be written, the
// values wait; of more than `kMaxQueued` the oldest are lost. Thread-safe.
class MetricsWriter {
 public:
  static constexpr size_t kMaxQueued = 500'000;

  // Creates the file and the folder it is in. flush(), rewind() and the destructor wait at most
  // `lock_patience_s` for other processes to close the file.
  explicit MetricsWriter(fs::path path, double flush_interval_s = 1.5, double lock_patience_s = 30.0);
  // Writes what is queued, in one attempt where flush() has failed; else what could not be written is reported on
  // stderr.
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // Queues a value, in place of an earlier one of the same step and tag.
  void add(int64_t step, const std::string& tag, double value);

  // Why the last write by the background thread failed, once; "" when it did not. Its values are still queued.
  std::string take_failure();

  // Returns when everything queued is in the file. Error (runtime) if it cannot be; it stays
  // queued.
  void flush();

  // Deletes what was recorded for steps beyond `step`, queued or written: a resumed run is about to
  // redo them.
  void rewind(int64_t step);

 private:
  using Key = std::pair<int64_t, std::string>;  // step, tag
  struct Value {
    double value;
    int64_t ts_ms;
  };

  // One attempt to write the queue; who holds the file when it cannot be opened.
  std::optional<std::string> try_write(std::optional<int64_t> rewind_to = std::nullopt);
  void write(std::optional<int64_t> rewind_to = std::nullopt);  // attempts until the patience ends
  void run();

  const fs::path path_;
  const std::chrono::duration<double> flush_interval_;
  std::chrono::duration<double> lock_patience_;
  bool told_ = false;  // flush() has failed

  std::mutex file_mutex_;  // held while writing; taken before mutex_
  std::mutex mutex_;       // guards what follows
  std::condition_variable wake_;
  std::map<Key, Value> queue_;
  std::string failure_;  // of the background thread
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace nmoe
