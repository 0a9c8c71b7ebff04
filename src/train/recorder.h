// What a run reports about itself: metrics for viewers, the run's row in experiments.db, the progress line, train.log.
//
// Threads: that of rank 0, which owns it.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "config/config.h"
#include "eval/evaluate.h"
#include "model/exchange_cost.h"
#include "track/metrics.h"
#include "track/run_log.h"
#include "track/runs.h"
#include "train/alert_desk.h"
#include "train/engine.h"
#include "train/validation.h"

namespace nmoe {

// The wall time of training steps alone. Validation and checkpoints stop it.
class StepClock {
 public:
  void start() { begin_ = Clock::now(); }
  void stop() {
    total_ = seconds();
    begin_.reset();
  }
  double seconds() const {
    return total_ + (begin_ ? std::chrono::duration<double>(Clock::now() - *begin_).count() : 0.0);
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> begin_;  // while it runs
  double total_ = 0.0;
};

struct StepReport {
  Progress progress;
  StepResult result;
  double bits_per_byte = 0.0;
  double seconds = 0.0;        // of the steps since the last report
  int64_t steps = 0;           // how many those are
  double flops = 0.0;          // what they took (model/cost.h), of all ranks
  double total_flops = 0.0;    // of the whole run so far
  double loader_wait_s = 0.0;  // of the rank, since its last record
};

// What a logged step's record has on every rank.
void report_rank(const StepReport& report, MetricRecord& record);

class Recorder {
 public:
  // Opens the stores under run.dir. Only rank 0 has a recorder: what it reports is of all ranks. `run_id` empty: a new
  // run; otherwise that run goes on after `step`, and what it recorded beyond is deleted. Error (runtime) when a store
  // cannot be used; from then on, what cannot be recorded is only warned of, and tried again later.
  // `alert_command`: see AlertDesk.
  Recorder(const Config& config, const Rank& rank, const std::string& run_id, int64_t step, const std::string& commit,
           const std::vector<std::string>& alert_command);

  const std::string& run_id() const { return run_id_; }
  MetricsWriter& metrics() { return *metrics_; }

  // The progress line; of every step, in order.
  void show(const StepReport& report, bool milestone);
  // Metrics of the step that was shown last, at the logging cadence. It was asked for its routers.
  void record(const StepReport& report);
  // A step whose loss or gradient is not finite.
  void record_failure(int64_t step, const StepResult& result);
  // Something else than a step is about to take its time.
  void expect_pause() { alerts_->expect_pause(); }
  // Experts that moved in front of step `step`, and how uneven the ranks' loads were before and would have been after.
  void record_rebalancing(int64_t step, const Rebalancing& done);
  // `source` empty: all sources together.
  void record_validation(int64_t step, std::string_view source, const ValidationResult& result, double seconds);
  void record_evaluation(int64_t step, const EvalReport& report);
  // The checkpoint of that step is whole.
  void record_checkpoint(int64_t step);
  void message(std::string_view text);
  // Ends the run's row, with step and loss of the last step shown, then writes the last metrics. Without it the run is
  // listed as dead when the process is gone.
  void finish(RunStatus status, const std::string& reason);

 private:
  using Clock = std::chrono::steady_clock;
  struct Last {
    int64_t step;
    int64_t tokens;
    double loss;
    double tokens_per_s;
  };
  double tokens_per_s(const StepReport& report) const;
  double rate(const Progress& progress, WeightGroup group) const;
  void record_progress();
  void append(const MetricRecord& record, bool is_step = false);
  void keep_row(const std::function<void()>& action);

  const Config& config_;
  ExchangeCost exchange_cost_;
  double peak_flops_;  // of all ranks
  std::filesystem::path runs_path_;
  RunInfo info_;
  std::optional<RunStore> runs_;  // none after it failed
  std::string run_id_;
  Clock::time_point row_retry_{};        // when it is tried again
  Clock::time_point metrics_warning_{};  // when the next is due
  std::optional<MetricsWriter> metrics_;
  std::optional<RunLog> log_;
  std::optional<AlertDesk> alerts_;
  std::optional<Last> last_;  // nothing before the first step
  ProgressLine line_;
};

}  // namespace nmoe
