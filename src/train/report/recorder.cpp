#include "train/report/recorder.h"

#include <fmt/format.h>

#include <map>

#include "base/failure.h"
#include "base/files.h"
#include "base/process.h"
#include "base/text.h"
#include "config/load.h"
#include "model/experts_exchange.h"
#include "optim/optimizer.h"
#include "track/metrics_reader.h"
#include "track/tags/evaluation.h"
#include "track/tags/exchange.h"
#include "track/tags/losses.h"
#include "track/tags/training.h"
#include "track/tags/validation.h"
#include "train/plan/run_folder.h"
#include "train/precision/precision_report.h"
#include "train/report/exchange_report.h"
#include "train/report/router_report.h"
#include "train/step/batch_shape.h"

namespace nmoe {
namespace {

constexpr auto kRetryAfter = std::chrono::seconds(60);

}  // namespace

void report_rank(const StepReport& report, MetricRecord& record) {
  const double ms = 1e3 * report.loader_wait_s / static_cast<double>(report.steps);
  record.put(tags::kLoaderWaitMs, ms);
  std::map<StepPhase, double> phases;
  for (const PhaseTime& time : report.result.phases) phases[time.phase] += time.ms;
  for (const auto& [phase, phase_ms] : phases) record.put(step_phase_metric(phase), phase_ms);
}

Recorder::Recorder(const Config& config, const Rank& rank, const std::string& run_id, int64_t step,
                   const std::string& commit, const std::vector<std::string>& alert_command, const MemoryPlan& memory)
    : config_(config),
      exchange_costs_(exchange_costs(config, rank.device.ops().compute_dtype(), rank.mesh().experts().count())),
      peak_flops_(rank.device.peak_flops() * static_cast<double>(rank.count())),
      runs_path_(runs_path(config)),
      line_("train", "step", config.train.steps, step) {
  const bool dirty = commit.ends_with('+');
  info_ = {.name = config.run.name,
           .experiment = config.run.experiment,
           .config_json = config_json(config),
           .git_hash = dirty ? commit.substr(0, commit.size() - 1) : commit,
           .git_dirty = dirty,
           .checkpoint_dir = checkpoint_dir(config).string()};
  run_id_ = run_id;
  open_row();
  try {
    const fs::path path = metrics_path(config.run.dir, run_id_);
    if (!run_id.empty() && has_metrics(path)) read_recent(path, step);
    metrics_ = run_id.empty() ? std::make_unique<MetricsWriter>(path) : MetricsWriter::go_on(path, step);
    // Those of ranks that the run had before and has no more.
    for (int64_t other = rank.count(); !run_id.empty() && has_metrics(metrics_path(config.run.dir, run_id_, other));
         ++other) {
      MetricsWriter::go_on(metrics_path(config.run.dir, run_id_, other), step);
    }
    log_.emplace(path.parent_path() / "train.log");
    std::vector<PlannedRegion> regions;
    for (const MemoryLine& line : memory.lines) {
      regions.push_back({line.owner, line.bytes, line.meaning, line.on_device});
    }
    write_memory_plan(memory_plan_path(path), regions);
    std::vector<fs::path> databases;
    for (int64_t r = 0; r < rank.count(); ++r) databases.push_back(metrics_path(config.run.dir, run_id_, r));
    alerts_.emplace(AlertDesk::Options{.run_name = config.run.name,
                                       .databases = std::move(databases),
                                       .top_k = config.model.moe.top_k,
                                       .command = alert_command});
  } catch (const std::exception& exception) {
    const std::string reason = as_error(exception).what();
    keep_row([&] { runs_->finish(run_id_, RunStatus::kFailed, reason); });
    throw;
  }
}

// Of a new run, which gets its id, or of one that goes on.
void Recorder::open_row() {
  const auto open = [&] {
    runs_.emplace(runs_path_);
    if (run_id_.empty()) {
      run_id_ = runs_->start(info_);
    } else {
      runs_->resume(run_id_, info_);
    }
  };
  try {
    open();
  } catch (const DamagedRuns& damage) {
    runs_.reset();
    set_runs_aside(runs_path_, damage);
    open();
  }
}

// So that a run that goes on shows the loss that it would have shown. What cannot be read is the writer's affair.
void Recorder::read_recent(const fs::path& metrics, int64_t step) {
  const std::string tag(tags::kLoss.tag);
  try {
    MetricsReader reader(metrics);
    reader.load(std::vector{tag});
    const Series& losses = reader.series(tag);
    for (const double loss : losses.values().first(losses.lower_bound(step + 1))) recent_.put(loss);
  } catch (const Error& error) {
    message(fmt::format("warning: the smoothed loss begins anew: {}", error.what()));
  }
}

// A row is worth less than the run. A database that failed is opened again, and a row that is gone made again; not too
// often, for a locked one takes seconds.
void Recorder::keep_row(const std::function<void()>& action) {
  for (bool again = runs_.has_value();; again = false) {
    try {
      if (!runs_) open_row();
      return action();
    } catch (const std::exception& exception) {
      runs_.reset();
      row_retry_ = Clock::now() + kRetryAfter;
      if (again) continue;
      return message(fmt::format("warning: the run's row is not up to date: {}", as_error(exception).what()));
    }
  }
}

double Recorder::tokens_per_s(const StepReport& report) const {
  return static_cast<double>(report.tokens) / report.seconds;
}

double Recorder::rate(const Progress& progress, WeightGroup group) const {
  return scheduled_rate(config_.optim.schedule, group_of(config_.optim, group).lr, progress, step_tokens(config_));
}

void Recorder::message(std::string_view text) {
  line_.message(text);
  if (log_) log_->line(text);
}

void Recorder::show(const StepReport& report, bool milestone) {
  const int64_t step = report.progress.steps;
  last_ = {.step = step,
           .tokens = report.total_tokens,
           .loss = report.result.loss(kNextToken),
           .tokens_per_s = tokens_per_s(report)};
  const std::string detail =
      fmt::format("loss {:.4f}{}  lr {:.2e}  norm {:.3g}  {}  {}  MFU {:.1f} %", last_->loss,
                  report.bits_per_byte ? fmt::format("  {:.3f} bits/byte", *report.bits_per_byte) : "",
                  rate(report.progress, WeightGroup::kMatrices), report.result.grad_norm,
                  human_seconds(report.seconds / static_cast<double>(report.steps)),
                  human_quantity(last_->tokens_per_s, "tokens/s"), 100.0 * report.flops / report.seconds / peak_flops_);
  line_.update(step, detail, milestone);
  if (milestone) log_->line(line_.text(step, detail));
  if (!report.result.precision.roles.empty()) record_precision(step, report.result.precision);
}

void Recorder::record_precision(int64_t step, const PrecisionReport& report) {
  MetricRecord record{.step = step, .ts_ms = now_ms()};
  report_precision(report, record);
  metrics_->append(record);
  for (const PrecisionWatch::Change& change : report.changes) {
    message(fmt::format("step {}: {}", step, precision_message(change, config_.precision.fallback)));
  }
}

void Recorder::record(const StepReport& report) {
  const std::span<const RouterHealth> routers = report.result.routers;
  MetricRecord record{.step = report.progress.steps, .ts_ms = now_ms()};
  const auto put = [&](const Metric& metric, double value) { record.put(metric, value); };
  recent_.put(last_->loss);
  for (const auto& [objective, value] : report.result.losses) put(objective->metric, value);
  if (report.bits_per_byte) put(tags::kBpb, *report.bits_per_byte);
  put(tags::kSpecialShare, report.special_share);
  for (size_t i = 0; i < report.result.depths.size(); ++i) {
    const auto& [loss, num_targets, num_right] = report.result.depths[i];
    if (num_targets == 0) continue;
    const std::string depth = std::to_string(i + 1);
    record.put(tags::kMtpLoss, {depth}, loss);
    record.put(tags::kMtpAcceptance, {depth}, static_cast<double>(num_right) / static_cast<double>(num_targets));
  }
  put(tags::kGradNorm, report.result.grad_norm);
  put(tags::kTokensSeen, static_cast<double>(report.total_tokens));
  put(tags::kFlops, report.total_flops);
  put(tags::kLr, rate(report.progress, WeightGroup::kMatrices));
  put(tags::kLrRest, rate(report.progress, WeightGroup::kRest));
  if (!routers.empty()) {
    put(tags::kLrExpert, rate(report.progress, WeightGroup::kExperts));
    put(tags::kLrRouter, rate(report.progress, WeightGroup::kRouter));
  }
  put(tags::kTokensPerS, last_->tokens_per_s);
  put(tags::kMsPerStep, 1e3 * report.seconds / static_cast<double>(report.steps));
  put(tags::kTflops, report.flops / report.seconds / 1e12);
  put(tags::kMfu, report.flops / report.seconds / peak_flops_);
  put(tags::kResidentGib, static_cast<double>(resident_bytes()) / (1024.0 * 1024.0 * 1024.0));
  report_rank(report, record);
  report_routers(routers, record);
  report_exchange(report.result.traffic, exchange_costs_, record);
  append(record, /*is_step=*/true);
  record_progress();
  const std::string failure = metrics_->take_failure();
  if (failure.empty() || Clock::now() < metrics_warning_) return;
  metrics_warning_ = Clock::now() + kRetryAfter;
  message(fmt::format("warning: metrics wait to be written: {}", failure));
}

void Recorder::append(const MetricRecord& record, bool is_step) {
  metrics_->append(record);
  for (const std::string& told : alerts_->take(record, is_step)) line_.message(told);
}

void Recorder::record_failure(int64_t step, const StepResult& result) {
  MetricRecord record{.step = step, .ts_ms = now_ms()};
  for (const auto& [objective, value] : result.losses) record.put(objective->metric, value);
  record.put(tags::kGradNorm, result.grad_norm);
  append(record);
}

void Recorder::record_rebalancing(int64_t step, const Rebalancing& done) {
  MetricRecord record{.step = step, .ts_ms = now_ms()};
  record.put(tags::kExpertMoves, static_cast<double>(done.moves()));
  for (const Rebalancing::Layer& layer : done.layers) {
    record.put(tags::kLoadBeforeMoves, {layer.layer}, layer.load_before);
    record.put(tags::kLoadAfterMoves, {layer.layer}, layer.load_after);
  }
  append(record);
}

void Recorder::record_validation(int64_t step, std::string_view source, const ValidationResult& result,
                                 double seconds) {
  const std::string place = source.empty() ? fmt::format("step {}", step) : fmt::format("step {}: {}", step, source);
  if (result.tokens == 0) return message(fmt::format("{}: validation has no token with a loss", place));
  const std::string answers =
      result.answers == 0 ? "" : fmt::format(", answers right {:.1f} %", 100.0 * result.answers_correct_share());
  const std::string bits = result.bytes == 0 ? "" : fmt::format(", {:.4f} bits per byte", result.bits_per_byte());
  const std::string special =
      result.special == 0 ? "" : fmt::format(", {:.4f} nats at special targets", result.special_loss());
  message(fmt::format("{}: validation loss {:.4f} nats{}{}{}", place, result.loss(), bits, special, answers));
  MetricRecord record{.step = step, .ts_ms = now_ms()};
  const auto put = [&](const Metric& metric, double value) {
    record.scalars.emplace_back(source.empty() ? std::string(metric.tag) : tag_of_source(metric, source), value);
  };
  put(tags::kValidLoss, result.loss());
  if (result.bytes > 0) put(tags::kValidBpb, result.bits_per_byte());
  put(tags::kValidTokens, static_cast<double>(result.tokens));
  put(tags::kValidBytes, static_cast<double>(result.bytes));
  put(tags::kValidSpecialShare, result.special_share());
  if (result.special > 0) put(tags::kValidSpecialLoss, result.special_loss());
  if (result.answers > 0) {
    put(tags::kValidAnswers, static_cast<double>(result.answers));
    put(tags::kValidAnswersCorrectShare, result.answers_correct_share());
    if (result.special > 0) put(tags::kValidSpecialPredictedShare, result.special_predicted_share());
  }
  put(tags::kValidSeconds, seconds);
  append(record);
  if (!source.empty() || Clock::now() < row_retry_) return;
  keep_row([&] { runs_->validated(run_id_, result.loss(), result.bytes > 0 ? result.bits_per_byte() : 0.0); });
}

void Recorder::record_checkpoint_time(int64_t step, const Metric& which, double seconds) {
  MetricRecord record{.step = step, .ts_ms = now_ms()};
  record.put(which, seconds);
  append(record);
}

void Recorder::record_checkpoint(int64_t step) {
  if (Clock::now() < row_retry_) return;
  keep_row([&] { runs_->saved(run_id_, step); });
}

void Recorder::record_evaluation(int64_t step, const EvalReport& report) {
  MetricRecord record{.step = step, .ts_ms = now_ms(), .scalars = report_metrics(report)};
  double seconds = 0.0;
  for (const TaskReport& task : report.tasks) seconds += task.seconds;
  record.put(tags::kEvalSeconds, seconds);
  append(record);
  message(fmt::format("step {}: {} ({})", step, short_report(report), human_seconds(seconds)));
}

void Recorder::record_samples(int64_t step, std::vector<SampleText> samples) {
  if (samples.empty()) return;
  try {
    append_samples(samples_path(metrics_path(config_.run.dir, run_id_)), {step, now_ms(), std::move(samples)});
  } catch (const std::exception& exception) {
    message(fmt::format("warning: sample texts are not kept: {}", as_error(exception).what()));
  }
}

void Recorder::record_progress() {
  if (!last_ || Clock::now() < row_retry_) return;
  const RunProgress progress = {.step = last_->step,
                                .tokens = last_->tokens,
                                .loss = last_->loss,
                                .smooth_loss = recent_.mean(),
                                .tokens_per_s = last_->tokens_per_s};
  keep_row([&] { runs_->progress(run_id_, progress); });
}

void Recorder::finish(RunStatus status, const std::string& reason) {
  line_.finish();
  alerts_->expect_pause();
  row_retry_ = {};
  record_progress();  // of the state that is saved, which need not be of a logged step
  keep_row([&] { runs_->finish(run_id_, status, reason); });
  try {
    metrics_->flush();
  } catch (const std::exception& exception) {
    message(fmt::format("warning: the last metrics are not written: {}", as_error(exception).what()));
  }
}

}  // namespace nmoe
