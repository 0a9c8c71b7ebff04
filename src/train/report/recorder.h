// What a run reports about itself: metrics for viewers, the run's row in experiments.db, the progress line, train.log.
//
// Threads: that of rank 0, which owns it.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "config/config.h"
#include "eval/evaluate.h"
#include "rdep/cost.h"
#include "track/metrics.h"
#include "track/recent_losses.h"
#include "track/run_files.h"
#include "track/run_log.h"
#include "track/runs.h"
#include "train/loop/validation.h"
#include "train/plan/memory_plan.h"
#include "train/report/alert_desk.h"
#include "train/step/engine.h"

namespace nmoe {

// The wall time of training steps only. It is stopped during validation and checkpoints.
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
  // Of the last logged step, of its targets that stand for text; nothing if there was none.
  std::optional<double> bits_per_byte;
  double special_share = 0.0;  // of the targets: those that stand for no text (train/loop/validation.h)
  double seconds = 0.0;        // of the steps since the last report
  int64_t steps = 0;           // number of these steps
  int64_t tokens = 0;          // of these steps, without padding
  int64_t total_tokens = 0;    // of the whole run so far
  double flops = 0.0;          // of these steps (model/spec/cost.h), on all ranks
  double total_flops = 0.0;    // of the whole run so far
  double loader_wait_s = 0.0;  // of the rank, since its last record
};

// The part of a logged step's record that every rank has.
void report_rank(const StepReport& report, MetricRecord& record);

class Recorder {
 public:
  // Opens the stores under run.dir. Only rank 0 has a recorder, which reports on all ranks. `run_id` empty: a new run;
  // otherwise that run continues after `step`, and what it recorded beyond is deleted. A store that is damaged is set
  // aside (track/aside.h). Error (runtime) if one cannot be used; later failures to record only cause a warning, and
  // are retried. `alert_command`: see AlertDesk. `memory` is kept with the run.
  Recorder(const Config& config, const Rank& rank, const std::string& run_id, int64_t step, const std::string& commit,
           const std::vector<std::string>& alert_command, const MemoryPlan& memory);

  const std::string& run_id() const { return run_id_; }
  MetricsWriter& metrics() { return *metrics_; }

  // Shows the progress line and the findings of a check of precision. Called for every step, in order.
  void show(const StepReport& report, bool milestone);
  // Records metrics of the step that was shown last, if it is to be logged. Its result must include routers.
  void record(const StepReport& report);
  // Records a step whose loss or gradient is not finite.
  void record_failure(int64_t step, const StepResult& result);
  // Something other than a step is about to take a long time.
  void expect_pause() { alerts_->expect_pause(); }
  // Records which experts moved before `step`, and how uneven the ranks' loads were and would have been.
  void record_rebalancing(int64_t step, const Rebalancing& done);
  // `source` empty: all sources together.
  void record_validation(int64_t step, std::string_view source, const ValidationResult& result, double seconds);
  // Records texts that the model generated after that step.
  void record_samples(int64_t step, std::vector<SampleText> samples);
  void record_evaluation(int64_t step, const EvalReport& report);
  // Records that the checkpoint of that step is complete.
  void record_checkpoint(int64_t step);
  // One of its times: tags::kCheckpointMetrics.
  void record_checkpoint_time(int64_t step, const Metric& which, double seconds);
  void message(std::string_view text);
  // Completes the run's row with step and loss of the last step shown, then writes the last metrics. Without this call,
  // the run is listed as dead once the process is gone.
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
  void record_precision(int64_t step, const PrecisionReport& report);
  void record_progress();
  void append(const MetricRecord& record, bool is_step = false);
  void open_row();
  void read_recent(const std::filesystem::path& metrics, int64_t step);
  void keep_row(const std::function<void()>& action);

  const Config& config_;
  std::vector<ExchangeCost> exchange_costs_;  // of all layers
  double peak_flops_;                         // of all ranks
  std::filesystem::path runs_path_;
  RunInfo info_;
  std::optional<RunStore> runs_;  // none after it failed
  std::string run_id_;
  Clock::time_point row_retry_{};        // when it is tried again
  Clock::time_point metrics_warning_{};  // when the next is due
  std::unique_ptr<MetricsWriter> metrics_;
  std::optional<RunLog> log_;
  std::optional<AlertDesk> alerts_;
  std::optional<Last> last_;  // nothing before the first step
  RecentLosses recent_;
  ProgressLine line_;
};

}  // namespace nmoe
