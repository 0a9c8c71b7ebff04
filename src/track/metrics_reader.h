// A rank's metrics as a program sees them that shows or compares runs, while the run goes on or later: what is in its
// database, what is still in its live file, and what comes.
//
//   MetricsReader reader(folder / "rank_0.duckdb");
//   reader.load({"train/loss"});
//   for (const Bucket& bucket : reader.series("train/loss").buckets(1, 100'000, 800)) ...   // now and then: poll()
//
// It opens the database when it begins and when tags are loaded, for that long only: a writer that waits meanwhile
// loses nothing. New values come from the live file alone. Not thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "track/live_file.h"
#include "track/metrics_file.h"
#include "track/series.h"

namespace nmoe {

class MetricsReader {
 public:
  // Of a run that has recorded anything. Error (runtime) where there are neither database nor live file, or another
  // program has the database for long.
  explicit MetricsReader(fs::path database);

  struct Change {
    bool values = false;    // something came
    bool reloaded = false;  // what was there has changed: the run was resumed from an earlier step, say. Of loaded tags
                            // all is as it is now; indices and buckets that were taken before are void.
  };
  // Takes what has come since the last call, and waits for nobody: what has to be read from a database that another
  // program has, comes with a later call.
  Change poll();

  // The last value of every tag, by tag; those of tags that are not loaded, too.
  std::vector<MetricsView::Last> tags() const;
  // Has the last row of these tags' arrays in memory, without those before it. Others are ignored.
  void load_last(std::span<const std::string> tags);
  // Of an array's tag that load_last() has loaded, or that has come since; empty of others.
  const std::vector<float>& last_row(const std::string& tag) const;
  bool has(const std::string& tag) const { return entries_.contains(tag); }

  // Has all values of these tags in memory from now on, in one opening of the database. Tags that are not there are
  // ignored, also later.
  void load(std::span<const std::string> tags);
  // Of a loaded tag; empty of others.
  const Series& series(const std::string& tag) const;
  const ArraySeries& arrays(const std::string& tag) const;

 private:
  struct Entry {
    MetricsView::Last last;
    bool loaded = false;
    Series series;  // of tags that are loaded
    ArraySeries arrays;
    std::vector<float> last_row;  // of arrays, where it is known

    bool rewind(int64_t step);
    // Puts columns of the database before what came through the live file, which takes the place of the same steps.
    void put_before(std::vector<int64_t> steps, std::vector<double> values, std::vector<int64_t> times);
    void put_before(std::vector<int64_t> steps, std::vector<std::vector<float>> rows, std::vector<int64_t> times);
  };
  bool has_database() const;
  void attach(MetricsView* view);
  void take(MetricRecord record, bool keep_all);
  using Wanted = std::map<std::string_view, Entry*>;
  static void load_from(MetricsView& view, int64_t max_step, const Wanted& wanted);
  bool has_all(MetricsView& view) const;

  fs::path path_;
  std::optional<fs::file_time_type> database_time_;  // of its last change, as it was read
  LiveTail tail_;
  bool outdated_ = false;  // all is to be read again
  bool ended_ = false;     // the live file went; whether it was read to its end is not known yet
  std::map<std::string, Entry, std::less<>> entries_;
};

// Whether a rank has recorded anything yet.
bool has_metrics(const fs::path& database);

// <run.dir>/metrics/<run id>/rank_<rank>.duckdb
// Error (runtime) where the id could name anything but a folder of that run alone: databases may be of others.
fs::path metrics_path(const fs::path& run_dir, const std::string& run_id, int64_t rank = 0);

}  // namespace nmoe
