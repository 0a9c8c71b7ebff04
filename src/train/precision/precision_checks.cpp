#include "train/precision/precision_checks.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace nmoe {

PrecisionChecks::PrecisionChecks(const PrecisionConfig& config, WeightSet& weights, std::vector<Watched> watched,
                                 std::vector<PrecisionWatch::Role> roles)
    : config_(config), weights_(&weights), watched_(std::move(watched)), watch_(std::move(roles)) {}

std::optional<PrecisionChecks> PrecisionChecks::make(const Config& config, WeightSet& weights, Arena& state) {
  if (!is_low(config.run.precision) || !checks_precision(config.precision)) return {};
  std::vector<Watched> watched;
  std::vector<PrecisionWatch::Role> roles;
  for (Weight& weight : weights.all()) {
    if (weight.copies.format == OperandFormat::kAct || weight.spec.joins_previous) continue;
    const auto same = [&](const PrecisionWatch::Role& role) {
      return role.layer == weight.spec.layer && role.part == weight.spec.part;
    };
    const auto role = std::ranges::find_if(roles, same);
    watched.push_back({&weight, static_cast<size_t>(role - roles.begin())});
    if (role == roles.end()) roles.push_back({weight.spec.layer, weight.spec.part, weight.copies.format});
  }
  if (watched.empty()) return {};
  PrecisionChecks checks(config.precision, weights, std::move(watched), std::move(roles));
  checks.counts_ = state.allocate(DType::kF64, {std::ssize(checks.watched_), kNumMeasured, 5});
  for (size_t i = 0; i < checks.watched_.size(); ++i) {
    checks.watched_[i].weight->probe.counts = checks.counts_[static_cast<int64_t>(i)];
  }
  return checks;
}

void PrecisionChecks::begin(Ops& ops, bool dense) {
  ops.fill({.x = counts_, .value = 0.0});
  for (const Watched& one : watched_) {
    if (dense || one.weight->spec.group == WeightGroup::kExperts) one.weight->probe.measure_next();
  }
}

PrecisionReport PrecisionChecks::observe(std::span<const double> counts) {
  NMOE_CHECK(std::ssize(counts) == counts_.num_elements(), "{} counts of {}", counts.size(), counts_.shape());
  PrecisionReport report;
  for (const PrecisionWatch::Role& role : watch_.roles()) {
    report.roles.push_back({.layer = role.layer, .part = role.part, .format = role.format});
  }
  size_t next = 0;
  for (const Watched& one : watched_) {
    for (MeasuredQuality& quality : report.roles[one.role].qualities) {
      const double* const c = counts.data() + next;
      quality.add({.values = c[0], .underflows = c[1], .saturated = c[2], .rows = c[3], .lost = c[4]});
      next += 5;
    }
  }
  report.changes = watch_.observe(report.roles);
  return report;
}

bool PrecisionChecks::set_formats() {
  if (!acts()) return false;
  bool any_is_another = false, in_act = false;
  size_t next = 0;
  for (Weight& weight : weights_->all()) {
    if (next < watched_.size() && watched_[next].weight == &weight) {
      in_act = watch_.in_act(watched_[next++].role);
    } else if (!weight.spec.joins_previous) {
      in_act = false;  // it has no format
    }
    any_is_another = any_is_another || weight.copies.in_act != in_act;
    weight.copies.in_act = in_act;
  }
  return any_is_another;
}

bool PrecisionChecks::restore(std::span<const PrecisionRole> state) {
  if (!watch_.restore(state)) return false;
  set_formats();
  return true;
}

}  // namespace nmoe
