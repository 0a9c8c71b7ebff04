// The rules for a run's alerts: on the metrics of rank 0, and on ranks that no longer log steps.
//
// An alert is given when its condition begins to hold, and again only if it has ceased to hold in between. Without
// clock and files. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "track/alerts.h"
#include "track/record.h"

namespace nmoe {

// The last values of a metric, their median and deviation.
class RecentValues {
 public:
  static constexpr size_t kMost = 32;
  static constexpr size_t kEnough = 16;  // values needed for a median to be meaningful

  void add(double value);
  bool has_enough() const { return count_ >= kEnough; }
  double median() const;
  double deviation() const;  // 1.4826 times the median distance from the median: sigma of a normal distribution

 private:
  std::array<double, kMost> values_{};
  size_t count_ = 0;
};

class AlertWatch {
 public:
  // A spike is a loss above the median by this many deviations and by this share of the median, or a gradient norm of
  // this many times its median that is above it by this many deviations.
  static constexpr double kSpikeDeviations = 8.0, kSpikeShare = 0.1, kSpikeNorm = 10.0;
  static constexpr double kSlow = 1.5;  // times the median time of a step, in kTurns logged steps in a row
  static constexpr int kTurns = 3;
  // An expert is dead if it gets no token in kTurns logged steps in a row. Before kFirstStep, routers are uneven
  // because training has just begun; with fewer than kLeastRows rows per expert, some get none by chance.
  static constexpr int64_t kFirstStep = 200;
  static constexpr double kLeastRows = 16.0;

  // `top_k` of the model's experts; 0 without.
  explicit AlertWatch(int64_t top_k) : top_k_(top_k) {}

  // Takes a record of rank 0: of a logged step, of a validation or of a step that was not finite.
  std::vector<Alert> take(const MetricRecord& record);

 private:
  struct Experts {
    std::vector<int> without;  // number of logged steps in a row in which each expert got nothing
    std::vector<bool> told;
  };
  void find_non_finite(const MetricRecord& record);
  void find_spike(const MetricRecord& record);
  void find_slow(const MetricRecord& record);
  void find_collapse(const MetricRecord& record);
  void find_dead(const MetricRecord& record);
  bool begins(AlertKind kind, const std::string& tag, bool holds);
  void tell(AlertKind kind, const MetricRecord& record, const std::string& tag, double value, const std::string& what);

  int64_t top_k_;
  RecentValues losses_, norms_, times_;
  int num_slow_ = 0;
  std::map<std::string, Experts> experts_;  // by the tag of their loads
  std::set<std::pair<AlertKind, std::string>> holding_;
  std::vector<Alert> found_;
};

// Ranks log the same steps. Times are of one clock, in milliseconds.
class SilenceWatch {
 public:
  // A rank is silent if it logs no step for kIntervals times as long as usual between two, and at least this long.
  static constexpr double kIntervals = 4.0;
  static constexpr int64_t kLeastMs = 4000;

  explicit SilenceWatch(int64_t num_ranks) : ranks_(static_cast<size_t>(num_ranks)) {}

  void logged(int64_t rank, int64_t step, int64_t now_ms);
  // Something else may take long until rank 0 logs its next step: a validation,
  // a checkpoint, the first step of a shape.
  void expect_none() { waits_ = false; }
  std::optional<Alert> look(int64_t now_ms);

 private:
  struct Of {
    int64_t step = -1;
    int64_t last_ms = 0;
    bool told = false;
  };
  std::vector<Of> ranks_;
  std::vector<int64_t> intervals_;  // the last few of rank 0, without pauses
  bool waits_ = false;
  bool told_ = false;  // that all are
};

}  // namespace nmoe
