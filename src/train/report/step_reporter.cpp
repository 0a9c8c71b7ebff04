#include "train/report/step_reporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <utility>

#include "base/error.h"

namespace nmoe {

void StepReporter::begin(const RunState& state, const std::string& run_id, Recorder* recorder) {
  recorder_ = recorder;
  reported_steps_ = state.progress.steps;
  reported_tokens_ = state.tokens;
  reported_flops_ = state.flops;
  own_recorder_.emplace(config_, rank_, run_id, state.progress.steps, recorder);
}

bool StepReporter::phases_due(int64_t step) {
  const auto now = std::chrono::steady_clock::now();
  if (step == 1 || now - phases_time_ < std::chrono::seconds(1)) return false;
  phases_time_ = now;
  return true;
}

// Of the targets that stand for text, on all ranks: nothing if there are none. As validation has it (ValidationResult).
std::optional<double> StepReporter::bits_per_byte(const StepFacts& step, std::span<const float> token_losses) const {
  NMOE_CHECK(token_losses.size() == step.is_text.size(), "{} losses of {} targets", token_losses.size(),
             step.is_text.size());
  double mine = 0.0, nats = 0.0;
  for (size_t i = 0; i < token_losses.size(); ++i) {
    if (step.is_text[i] != 0) mine += static_cast<double>(token_losses[i]);
  }
  for (const double of_rank : rank_.mesh().data().all_gather_values(mine)) nats += of_rank;
  if (step.bytes == 0) return std::nullopt;
  return nats / (std::numbers::ln2 * static_cast<double>(step.bytes));
}

std::string StepReporter::report(const StepFacts& step, StepResult result) {
  if (step.log) bits_per_byte_ = bits_per_byte(step, result.token_losses);
  for (DepthResult& depth : result.depths) {
    if (!step.log) break;
    const int64_t mine = std::exchange(depth.num_right, 0);
    for (const int64_t of_rank : rank_.mesh().data().all_gather_values(mine)) depth.num_right += of_rank;
  }
  const int64_t steps = step.end.progress.steps;
  const StepReport report{
      .progress = step.end.progress,
      .result = std::move(result),
      .bits_per_byte = bits_per_byte_,
      .special_share = static_cast<double>(step.special) / static_cast<double>(std::max<int64_t>(step.targets, 1)),
      .seconds = clock_.seconds() - reported_seconds_,
      .steps = steps - reported_steps_,
      .tokens = step.end.tokens - reported_tokens_,
      .total_tokens = step.end.tokens,
      .flops = step.end.flops - reported_flops_,
      .total_flops = step.end.flops,
      .loader_wait_s = loader_wait_s_};
  if (recorder_ != nullptr) recorder_->show(report, step.log);
  if (!step.log) return "";
  if (recorder_ != nullptr) {
    recorder_->record(report);
    const std::string imbalance = balance_.observe(steps, report.result.routers);
    if (!imbalance.empty()) recorder_->message(imbalance);
  }
  own_recorder_->record(report);
  loader_wait_s_ = 0.0;
  reported_seconds_ = clock_.seconds();
  reported_steps_ = steps;
  reported_tokens_ = step.end.tokens;
  reported_flops_ = step.end.flops;
  if (!config_.train.stop_on_collapse) return "";
  const std::string collapse = find_collapse(report.result.routers, config_.model.moe);
  return collapse.empty() ? "" : fmt::format("step {}: {}", steps, collapse);
}

}  // namespace nmoe
