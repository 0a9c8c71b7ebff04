#include "train/recorder.h"

#include <fmt/format.h>

#include "base/files.h"
#include "base/process.h"
#include "base/text.h"
#include "config/load.h"
#include "optim/optimizer.h"
#include "train/batch_shape.h"
#include "train/exchange_report.h"
#include "train/router_report.h"
#include "train/trainer.h"

namespace nmoe {
namespace {

constexpr auto kRetryAfter = std::chrono::seconds(60);

}  // namespace

Recorder::Recorder(const Config& config, const Rank& rank, const std::string& run_id, int64_t step,
                   const std::string& commit)
    : config_(config),
      exchange_cost_(config, rank.device.ops().compute_dtype(), rank.communicator.domain().count()),
      peak_flops_(rank.device.peak_flops() * static_cast<double>(rank.count())),
      runs_path_(fs::path(config.run.dir) / "experiments.db"),
      line_("train", "step", config.train.steps, step) {
  const bool dirty = commit.ends_with('+');
  info_ = {.name = config.run.name,
           .experiment = config.run.experiment,
           .config_json = config_json(config),
           .git_hash = dirty ? commit.substr(0, commit.size() - 1) : commit,
           .git_dirty = dirty,
           .checkpoint_dir = checkpoint_dir(config).string()};
  runs_.emplace(runs_path_);
  if (run_id.empty()) {
    run_id_ = runs_->start(info_);
  } else {
    runs_->resume(run_id, info_);
    run_id_ = run_id;
  }
  try {
    metrics_.emplace(fs::path(config.run.dir) / "metrics" / run_id_ / fmt::format("rank_{}.duckdb", rank.index()));
    metrics_->rewind(step);
  } catch (const std::exception& error) {
    keep_row([&] { runs_->finish(run_id_, RunStatus::kFailed, error.what()); });
    throw;
  }
}

// A row is worth less than the run. A database that failed is opened again, and a row that is gone made again; not too
// often, for a locked one takes seconds.
void Recorder::keep_row(const std::function<void()>& action) {
  for (bool again = runs_.has_value();; again = false) {
    try {
      if (!runs_) {
        runs_.emplace(runs_path_);
        runs_->resume(run_id_, info_);
      }
      return action();
    } catch (const std::exception& error) {
      runs_.reset();
      row_retry_ = Clock::now() + kRetryAfter;
      if (again) continue;
      return message(fmt::format("warning: the run's row is not up to date: {}", error.what()));
    }
  }
}

double Recorder::tokens_per_s(const StepReport& report) const {
  return static_cast<double>(report.steps * step_tokens(config_)) / report.seconds;
}

void Recorder::show(const StepReport& report, bool milestone) {
  last_ = {.step = report.progress.steps, .loss = report.result.loss, .tokens_per_s = tokens_per_s(report)};
  line_.update(report.progress.steps,
               fmt::format("loss {:.4f}  {:.3f} bits/byte  {}tokens/s", report.result.loss, report.bits_per_byte,
                           human_count(tokens_per_s(report))),
               milestone);
}

void Recorder::record(const StepReport& report) {
  const std::span<const RouterHealth> routers = report.result.routers;
  const int64_t step = report.progress.steps;
  const auto put = [&](std::string_view tag, double value) { metrics_->add(step, std::string(tag), value); };
  put("train/loss", report.result.loss);
  put("train/bpb", report.bits_per_byte);
  put("train/grad_norm", report.result.grad_norm);
  put("train/tokens_seen", static_cast<double>(report.progress.tokens));
  put("train/flops", report.total_flops);

  const auto put_rate = [&](std::string_view tag, WeightGroup group) {
    put(tag, scheduled_rate(config_.optim.schedule, group_of(config_.optim, group).lr, report.progress));
  };
  put_rate("optimizer/lr", WeightGroup::kMatrices);
  put_rate("optimizer/lr_rest", WeightGroup::kRest);
  if (!routers.empty()) {
    put_rate("optimizer/lr_expert", WeightGroup::kExperts);
    put_rate("optimizer/lr_router", WeightGroup::kRouter);
  }

  const double rate = last_->tokens_per_s;
  put("throughput/tokens_per_s", rate);
  put("throughput/ms_per_step", 1e3 * report.seconds / static_cast<double>(report.steps));
  put("efficiency/tflops", report.flops / report.seconds / 1e12);
  put("efficiency/mfu", report.flops / report.seconds / peak_flops_);
  put("memory/resident_gib", static_cast<double>(resident_bytes()) / (1024.0 * 1024.0 * 1024.0));
  report_routers(routers, put);
  report_exchange(report.result.traffic, exchange_cost_, put);
  record_progress();
  const std::string failure = metrics_->take_failure();
  if (failure.empty() || Clock::now() < metrics_warning_) return;
  metrics_warning_ = Clock::now() + kRetryAfter;
  message(fmt::format("warning: metrics wait in memory to be written: {}", failure));
}

void Recorder::record_rebalancing(int64_t step, const Rebalancing& done) {
  metrics_->add(step, "parallel/expert_moves", static_cast<double>(done.moves()));
  for (const Rebalancing::Layer& layer : done.layers) {
    metrics_->add(step, fmt::format("parallel/layer_{:02}/load_before_moves", layer.layer), layer.load_before);
    metrics_->add(step, fmt::format("parallel/layer_{:02}/load_after_moves", layer.layer), layer.load_after);
  }
}

void Recorder::record_validation(int64_t step, std::string_view source, const ValidationResult& result,
                                 double seconds) {
  const std::string prefix = source.empty() ? "valid/" : fmt::format("valid/{}/", source);
  metrics_->add(step, prefix + "loss", result.loss());
  metrics_->add(step, prefix + "bpb", result.bits_per_byte());
  metrics_->add(step, prefix + "tokens", static_cast<double>(result.tokens));
  metrics_->add(step, prefix + "bytes", static_cast<double>(result.bytes));
  if (result.answers > 0) {
    metrics_->add(step, prefix + "answers", static_cast<double>(result.answers));
    metrics_->add(step, prefix + "answers_correct_share", result.answers_correct_share());
  }
  metrics_->add(step, prefix + "seconds", seconds);
}

void Recorder::record_progress() {
  if (!last_ || Clock::now() < row_retry_) return;
  keep_row([&] { runs_->progress(run_id_, last_->step, last_->loss, last_->tokens_per_s); });
}

void Recorder::finish(RunStatus status, const std::string& reason) {
  line_.finish();
  row_retry_ = {};
  record_progress();  // of the state that is saved, which need not be of a logged step
  keep_row([&] { runs_->finish(run_id_, status, reason); });
  try {
    metrics_->flush();
  } catch (const std::exception& error) {
    message(fmt::format("warning: the last metrics are not written: {}", error.what()));
  }
}

}  // namespace nmoe
