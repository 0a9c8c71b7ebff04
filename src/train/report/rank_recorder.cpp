#include "train/report/rank_recorder.h"

#include <exception>

#include "base/say.h"
#include "track/metrics_reader.h"

namespace nmoe {

RankRecorder::RankRecorder(const Config& config, const Rank& rank, const std::string& run_id, int64_t step,
                           Recorder* recorder)
    : step_(step) {
  try {
    if (recorder == nullptr) {
      own_ = MetricsWriter::go_on(metrics_path(config.run.dir, run_id, rank.index()), step);
    }
    if (config.run.device != "cuda" || rank.mesh().process().index() != 0) return;
    gpus_.emplace([this, &writer = own_ ? *own_ : recorder->metrics()](MetricRecord record) {
      record.step = step_;
      extremes_.add(record);
      writer.append(record);
    });
  } catch (const std::exception& error) {
    say("warning: not all metrics of rank {} are recorded: {}\n", rank.index(), error.what());
  }
}

void RankRecorder::record(const StepReport& report) {
  step_ = report.progress.steps;
  if (!own_) return;
  MetricRecord record{.step = report.progress.steps, .ts_ms = now_ms()};
  report_rank(report, record);
  own_->append(record);
}

}  // namespace nmoe
