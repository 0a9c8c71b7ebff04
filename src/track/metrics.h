// Writes a rank's metrics while training goes on: each record to rank_<r>.live at once (live_file.h), from there to
// rank_<r>.duckdb every minute and at the end (metrics_file.h), on a thread of its own. What a killed process left in
// the live file is moved by the next that goes on with the run.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "track/live_file.h"
#include "track/metrics_file.h"
#include "track/record.h"

namespace nmoe {

int64_t now_ms();  // since 1970 UTC

// Readers never hold it up: while one has the database open, or that cannot be written, the values stay in the live
// file. While that cannot be written, records wait in memory; of more than `kMaxWaitingBytes` the oldest are lost.
// Thread-safe.
class MetricsWriter {
 public:
  static constexpr size_t kMaxWaitingBytes = size_t{16} << 20;

  // `path` is that of the database; the live file stands beside it. Creates both and the folder they are in, and moves
  // what is left in the live file, unless a reader has the database open. flush() waits at most `lock_patience_s` for
  // readers. Error (runtime) where either file is something else or cannot be written.
  explicit MetricsWriter(fs::path path, double fold_interval_s = 60.0, double lock_patience_s = 2.0);
  // For a run that goes on behind `step`: the same, with rewind(). A database or a live file that cannot be used
  // because of what is in it is set aside (aside.h) and warned of; what follows is recorded anew.
  static std::unique_ptr<MetricsWriter> go_on(const fs::path& path, int64_t step);
  // Moves everything to the database and removes the live file, in one attempt where flush() has failed; what could not
  // be moved stays there and is reported on standard error.
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // One write to the live file. A value takes the place of an earlier one of its step and tag. Does not throw: see
  // take_failure().
  void append(const MetricRecord& record);

  // Voids what was recorded for steps beyond `step`: a resumed run is about to redo them.
  void rewind(int64_t step) { append({.step = step, .ts_ms = now_ms(), .rewind = true}); }

  // Why records could not be written to the live file or moved to the database the last time it was tried, once; ""
  // when all went well. They are kept and tried again.
  std::string take_failure();

  // Returns when everything is in the database. Error (runtime) if it cannot be.
  void flush();

 private:
  void write_waiting();
  void move_all();  // attempts until the patience ends
  // One attempt; who holds the database when it cannot be opened.
  std::optional<std::string> fold();
  // The database says up to where it has the live file: what it has must be there after a power cut, too, or what
  // comes next would be taken for it.
  std::optional<MetricsBatch> next_batch(uint64_t position);
  void run();

  const fs::path path_;
  const std::chrono::duration<double> fold_interval_;
  std::chrono::duration<double> lock_patience_;
  bool told_ = false;  // flush() has failed

  std::mutex fold_mutex_;  // held while the database is written; taken before mutex_
  std::mutex mutex_;       // guards what follows
  std::condition_variable wake_;
  std::optional<LiveFile> live_;
  std::deque<std::string> waiting_;  // frames that are not in the live file
  size_t waiting_bytes_ = 0;
  std::string failure_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace nmoe
