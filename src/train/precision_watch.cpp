#include "train/precision_watch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace nmoe {

void OperandQuality::add(const RoundingCounts& counts) {
  if (counts.values == 0) return;
  underflow_share = std::max(underflow_share, counts.underflows / counts.values);
  saturated_share = std::max(saturated_share, counts.saturated / counts.values);
  if (counts.lost == 0) return;  // all is exact
  snr_db = std::min(snr_db, -10.0 * std::log10(counts.lost * kLostUnit / counts.rows));
}

Operand RoleCheck::lowest() const {
  return static_cast<Operand>(std::ranges::min_element(operands, {}, &OperandQuality::snr_db) - operands.begin());
}

std::string_view part_name(WeightPart part) {
  switch (part) {
    case WeightPart::kMixer:
      return "mixer";
    case WeightPart::kDense:
      return "dense";
    case WeightPart::kShared:
      return "shared";
    case WeightPart::kExperts:
      return "experts";
    case WeightPart::kOther:
      break;
  }
  return "other";
}

std::string_view operand_name(Operand operand) {
  switch (operand) {
    case Operand::kInputs:
      return "inputs";
    case Operand::kWeights:
      return "weights";
    case Operand::kGradients:
      break;
  }
  return "gradients";
}

std::string_view format_name(OperandFormat format) {
  switch (format) {
    case OperandFormat::kFp8:
      return "fp8";
    case OperandFormat::kMxFp8:
      return "mxfp8";
    case OperandFormat::kNvFp4:
      return "nvfp4";
    case OperandFormat::kAct:
      break;
  }
  return "act";
}

double PrecisionWatch::threshold_db(OperandFormat format) { return format == OperandFormat::kNvFp4 ? 10.0 : 28.0; }

PrecisionWatch::PrecisionWatch(std::vector<Role> roles) : roles_(std::move(roles)) {
  for (const Role& role : roles_) {
    state_.push_back({.layer = role.layer, .part = std::string(part_name(role.part)), .in_act = false, .votes = {}});
  }
}

std::vector<PrecisionWatch::Change> PrecisionWatch::observe(std::span<RoleCheck> checks) {
  NMOE_CHECK(checks.size() == roles_.size(), "checks of {} roles, of {}", checks.size(), roles_.size());
  std::vector<Change> changes;
  for (size_t i = 0; i < roles_.size(); ++i) {
    PrecisionRole& state = state_[i];
    const double threshold = threshold_db(roles_[i].format), snr_db = checks[i].snr_db();
    const bool for_change = state.in_act ? snr_db >= threshold + kMarginDb : snr_db < threshold;
    if (state.votes.size() == kVotes) state.votes.erase(state.votes.begin());
    state.votes.push_back(for_change ? 1 : 0);
    const int count = std::accumulate(state.votes.begin(), state.votes.end(), 0);
    if (count >= (state.in_act ? static_cast<int>(kVotes) : kVotesToLeave)) {
      state.in_act = !state.in_act;
      state.votes.clear();
      changes.push_back({.role = roles_[i], .to_act = state.in_act, .lowest = checks[i].lowest(), .snr_db = snr_db});
    }
    checks[i].in_act = state.in_act;
  }
  return changes;
}

void PrecisionWatch::leave_all() {
  for (PrecisionRole& role : state_) role.in_act = true;
}

bool PrecisionWatch::restore(std::span<const PrecisionRole> state) {
  const auto is_same = [](const PrecisionRole& a, const PrecisionRole& b) {
    return a.layer == b.layer && a.part == b.part && b.votes.size() <= kVotes;
  };
  if (!std::ranges::equal(state_, state, is_same)) return false;
  state_.assign(state.begin(), state.end());
  return true;
}

}  // namespace nmoe
