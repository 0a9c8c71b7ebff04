#include "train/precision/precision_watch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace nmoe {

void MeasuredQuality::add(const RoundingCounts& counts) {
  if (counts.values == 0) return;
  underflow_share = std::max(underflow_share, counts.underflows / counts.values);
  saturated_share = std::max(saturated_share, counts.saturated / counts.values);
  if (counts.lost == 0) return;  // all is exact
  snr_db = std::min(snr_db, -10.0 * std::log10(counts.lost * kLostUnit / counts.rows));
}

double RoleCheck::margin_db(Measured what) const { return snr_db(what) - PrecisionWatch::threshold_db(format, what); }

Measured RoleCheck::lowest() const {
  Measured lowest = Measured::kInputs;
  for (int64_t i = 1; i < kNumMeasured; ++i) {
    const auto what = static_cast<Measured>(i);
    if (margin_db(what) < margin_db(lowest)) lowest = what;
  }
  return lowest;
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

std::string_view measured_name(Measured what) {
  switch (what) {
    case Measured::kInputs:
      return "inputs";
    case Measured::kWeights:
      return "weights";
    case Measured::kGradients:
      return "gradients";
    case Measured::kOutputs:
      return "outputs";
    case Measured::kInputGradients:
      break;
  }
  return "input_gradients";
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

double PrecisionWatch::threshold_db(OperandFormat format, Measured what) {
  if (is_output(what)) return format == OperandFormat::kNvFp4 ? 12.0 : 25.0;
  return format == OperandFormat::kNvFp4 ? 10.0 : 28.0;
}

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
    const Measured lowest = checks[i].lowest();
    const double margin_db = checks[i].margin_db(lowest);
    const bool for_change = state.in_act ? margin_db >= kMarginDb : margin_db < 0.0;
    if (state.votes.size() == kVotes) state.votes.erase(state.votes.begin());
    state.votes.push_back(for_change ? 1 : 0);
    const int count = std::accumulate(state.votes.begin(), state.votes.end(), 0);
    if (count >= (state.in_act ? static_cast<int>(kVotes) : kVotesToLeave)) {
      state.in_act = !state.in_act;
      state.votes.clear();
      changes.push_back(
          {.role = roles_[i], .to_act = state.in_act, .lowest = lowest, .snr_db = checks[i].snr_db(lowest)});
    }
    checks[i].in_act = state.in_act;
  }
  return changes;
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
