// What is shown of one run, of all its ranks, while it goes on or later.
//
// Read piece by piece, so that no key waits for a large run: load_next() until it returns false, then poll() now and
// then. What cannot be read is told by problem() and tried again. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/metric.h"
#include "track/alerts.h"
#include "track/metrics_reader.h"
#include "track/runs.h"

namespace nmoe::mon {

class RunData {
 public:
  // `config_json`: the run's configuration.
  RunData(fs::path run_dir, RunRow run, const std::string& config_json);

  const RunRow& run() const { return run_; }
  void set_run(RunRow run) { run_ = std::move(run); }
  int64_t total_steps() const { return total_steps_; }  // 0: not known
  const std::string& problem() const { return problem_; }

  // Reads one more piece. False when there is none.
  bool load_next();
  // Takes what has come; whether anything did.
  bool poll();

  // The tag whose values series() has.
  void show(const std::string& tag);
  const std::string& shown() const { return shown_; }
  const Series& series() const;
  const Series& validation() const;  // losses, where train/loss is shown; else empty

  std::vector<std::string> scalar_tags() const;             // of rank 0, by name
  std::optional<double> value(std::string_view tag) const;  // the last, of rank 0
  std::optional<double> value(const Metric& metric) const { return value(metric.tag); }
  int64_t last_ms() const { return last_ms_; }  // when rank 0 recorded something; 0: never

  struct RouterLayer {
    int64_t layer = 0;
    std::vector<float> load;  // rows of each expert
    double mean() const;
    double max() const;
    int64_t dead() const;
    double cv() const;
  };
  const std::vector<RouterLayer>& routers() const { return routers_; }

  struct Gpu {
    int64_t rank = 0;                        // that recorded it
    std::string number;                      // "00"
    std::map<const Metric*, double> values;  // of tags::kGpuMetrics
    std::optional<double> sent_gib_per_s, received_gib_per_s;
    int64_t last_ms = 0;

    std::optional<double> value(const Metric& metric) const;
  };
  const std::vector<Gpu>& gpus() const { return gpus_; }

  struct Rank {
    int64_t rank = 0;
    int64_t step = 0;
    int64_t last_ms = 0;  // when it last recorded something
    std::optional<double> loader_wait_ms;
    // Of the last recorded step, all layers together.
    std::optional<double> sent_bytes, wait_ms, transfer_ms;
  };
  const std::vector<Rank>& ranks() const { return ranks_; }

  const std::vector<std::string>& messages() const { return messages_; }  // the last of train.log
  const std::vector<Alert>& alerts() const { return alerts_; }            // the last, oldest first

 private:
  fs::path metrics(int64_t rank) const { return metrics_path(run_dir_, run_.id, rank); }
  bool load_piece();
  void read_values();
  void read_routers();
  void read_gpus(int64_t rank, const std::vector<MetricsView::Last>& tags);
  void read_ranks();
  bool read_log();
  bool read_new_alerts();

  fs::path run_dir_;
  RunRow run_;
  int64_t total_steps_ = 0;
  std::string problem_;
  std::string shown_;
  std::vector<std::unique_ptr<MetricsReader>> readers_;  // by rank; grows
  bool shown_is_loaded_ = false;
  bool routers_are_loaded_ = false;
  bool has_loaded_ = false;                // in the last load_next()
  std::vector<MetricsView::Last> values_;  // of rank 0, by tag
  int64_t last_ms_ = 0;
  std::vector<RouterLayer> routers_;
  std::vector<Gpu> gpus_;
  std::vector<Rank> ranks_;
  std::vector<std::string> messages_;
  uintmax_t log_bytes_ = 0;
  std::vector<Alert> alerts_;
  uintmax_t alert_bytes_ = 0;
};

}  // namespace nmoe::mon
