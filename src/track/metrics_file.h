// One DuckDB file of metrics: metrics/<run>/rank_<r>.duckdb with the tables
//
//   metrics(step BIGINT, tag VARCHAR, value DOUBLE, ts_ms BIGINT)      key (step, tag)
//   arrays(step BIGINT, tag VARCHAR, value FLOAT[], ts_ms BIGINT)      key (step, tag)
//   live_position(id BIGINT, position BIGINT)                          of the live file, up to which all is here
//
// Files of earlier versions have the first alone. DuckDB lets one process write a file or several read it, never both:
// whoever opens one does so briefly. Within the process they take turns (DuckDB's file locks do not tell threads
// apart).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "track/record.h"

namespace nmoe {

// Of a file, or of what is to be put into it, which cannot be used because of what is in it; not for want of room,
// memory or permissions.
class DamagedMetrics : public Error {
 public:
  using Error::Error;
};

// Records from `begin` to `end` of a live file, in order.
struct MetricsBatch {
  std::vector<MetricRecord> records;
  uint64_t end = 0;
};

// Moves records of the live file `id` here: calls `next` with the position up to which its records are here, or `base`
// if none is, and puts what it returns into the file, created when missing, in one transaction; so until that is
// nothing. A value takes the place of an earlier one of its key. When another process has the file open, does nothing
// and returns DuckDB's word for who. Error (runtime) when the file cannot be written, or DamagedMetrics.
[[nodiscard]] std::optional<std::string> fold_metrics(
    const fs::path& path, uint64_t id, uint64_t base,
    const std::function<std::optional<MetricsBatch>(uint64_t position)>& next);

// Puts a record that no live file has into the file, beside a writer that may be at work. Waits as MetricsView does;
// Error (runtime) like fold_metrics(), or when another program keeps the file open.
void add_metrics(const fs::path& path, const MetricRecord& record);

// Reads all of it, unless somebody else has it open. Error (runtime) like fold_metrics().
void check_metrics(const fs::path& path);

// The file, open for reading for as long as this lives: no writer gets in meanwhile, nor another of this process. The
// constructor waits for whoever is in, which is soon done; Error (runtime) when it is not, or when there is no such
// file of metrics.
class MetricsView {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  explicit MetricsView(const fs::path& path);
  // The same without waiting: null while somebody is in.
  static std::unique_ptr<MetricsView> open_now(const fs::path& path);
  ~MetricsView();

  struct Position {
    uint64_t id = 0;
    uint64_t end = 0;
  };
  std::optional<Position> position();

  struct Last {
    std::string tag;
    bool is_array = false;
    int64_t step = 0;
    double value = 0.0;  // of an array: how many values it has
    int64_t ts_ms = 0;
  };
  // Of every tag the last value of those up to `max_step`, by tag.
  std::vector<Last> last(int64_t max_step = kNoLimit);

  // All of one tag up to `max_step`, of arrays from `first_step` on, in no order.
  using TakeValue = std::function<void(int64_t step, double value, int64_t ts_ms)>;
  void series(const std::string& tag, int64_t max_step, const TakeValue& take);
  using TakeArray = std::function<void(int64_t step, std::vector<float> values, int64_t ts_ms)>;
  void arrays(const std::string& tag, int64_t max_step, const TakeArray& take, int64_t first_step = 0);

  // All of all tags up to `max_step`, in no order: for many tags at once.
  using TakeTagged = std::function<void(const std::string& tag, int64_t step, double value, int64_t ts_ms)>;
  using TakeTaggedArray =
      std::function<void(const std::string& tag, int64_t step, std::vector<float> values, int64_t ts_ms)>;
  void each(int64_t max_step, const TakeTagged& take, const TakeTaggedArray& take_array);

 private:
  class Impl;
  explicit MetricsView(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Gives back the memory that the database's code takes, some 17 MB: for programs that stay and read now and then. What
// is used again comes back from the file.
void forget_database_code();

}  // namespace nmoe
