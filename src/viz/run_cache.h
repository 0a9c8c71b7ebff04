// What viewers have looked at, in memory: the columns of runs, following those that go on. What has not been looked at
// for longest is forgotten when it becomes too much, and read again when somebody asks.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "track/metrics_reader.h"
#include "viz/training_time.h"

namespace nmoe {

class RunCache {
 public:
  RunCache(fs::path run_dir, int64_t max_bytes) : run_dir_(std::move(run_dir)), max_bytes_(max_bytes) {}

  // Calls `look` with the metrics of a run's rank, of which these tags are loaded; those that are not there are empty
  // series. `time` is kept with them. Error (runtime) where the rank has recorded nothing, or another program has its
  // database for long. `run` is the id of a run that exists: it becomes a part of a path.
  using Look = std::function<void(const MetricsReader& metrics, TrainingTime& time)>;
  void look(const std::string& run, int64_t rank, std::span<const std::string> tags, const Look& look);

  using Key = std::pair<std::string, int64_t>;  // run, rank
  // Takes what has come since, waiting for nobody; of whom there is something new.
  std::vector<Key> poll();

 private:
  struct Entry {
    explicit Entry(const fs::path& database) : metrics(database) {}
    std::mutex wanted_mutex;       // guards `wanted`; taken after `mutex`, or alone
    std::set<std::string> wanted;  // by all who are about to look: whoever comes first opens the database once for them
    std::mutex mutex;              // guards what follows
    MetricsReader metrics;
    TrainingTime time;
    std::set<std::string> loaded;

    int64_t bytes() const;
  };
  struct Place {
    std::shared_ptr<Entry> entry;
    uint64_t used = 0;  // when, by clock_
    int64_t bytes = 0;
  };
  std::shared_ptr<Entry> entry_of(const Key& key);
  void set_bytes(const Key& key, int64_t bytes);
  void drop_oldest(const Key& kept);

  const fs::path run_dir_;
  const int64_t max_bytes_;
  std::mutex mutex_;  // guards what follows; never held while a file is read
  std::map<Key, Place> places_;
  uint64_t clock_ = 0;
};

}  // namespace nmoe
