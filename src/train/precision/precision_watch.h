// Whether parts of layers bear the format of their products: decides, from what rounding loses, which parts fall back
// and which return to their format. Without device and clock.
//
// A role is a part of a layer (WeightPart), which has one format. Operands and outputs of its products are measured
// (Measured), each as a signal-to-noise ratio in dB: -10 log10 of the mean share that rounding loses (RoundingCounts).
// E4M3 achieves 31.5 dB for values that span less than 14 powers of two within a block, E2M1 13 to 19 dB. An outlier
// that leaves nothing of its block loses the whole block: with one row of blocks in 600 lost, E4M3 is below its
// threshold. Errors of operands add up: with 28 dB each, outputs have 25 dB, unless terms cancel.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/kinds.h"
#include "checkpoint/manifest.h"
#include "model/spec/spec.h"
#include "model/weight.h"

namespace nmoe {

// The result of a check for one operand or output, over a role's weights.
struct MeasuredQuality {
  double snr_db = std::numeric_limits<double>::infinity();  // of the weight with the lowest; infinite without values
  double underflow_share = 0.0;  // of an operand's values that are not zero; the largest of any weight
  double saturated_share = 0.0;  // same

  void add(const RoundingCounts& counts);  // a weight's
};

struct RoleCheck {
  int64_t layer = 0;
  WeightPart part = WeightPart::kOther;
  OperandFormat format = OperandFormat::kAct;
  std::array<MeasuredQuality, kNumMeasured> qualities = {};  // by Measured
  bool in_act = false;                                       // whether it has fallen back, as currently decided

  double snr_db(Measured what) const { return qualities[static_cast<size_t>(what)].snr_db; }
  double margin_db(Measured what) const;  // over the threshold of its format
  Measured lowest() const;                // the one with the least margin
};

std::string_view part_name(WeightPart part);         // "experts", as in [precision]
std::string_view measured_name(Measured what);       // "inputs"
std::string_view format_name(OperandFormat format);  // "fp8"

class PrecisionWatch {
 public:
  static constexpr size_t kVotes = 4;       // number of last checks that count
  static constexpr int kVotesToLeave = 3;   // if this many of them are below the threshold, the role falls back to act
  static constexpr double kMarginDb = 1.5;  // if all of them are this far above the thresholds, it returns
  static double threshold_db(OperandFormat format, Measured what);

  struct Role {
    int64_t layer;
    WeightPart part;
    OperandFormat format;
  };
  // What changed in a check.
  struct Change {
    Role role;
    bool to_act;  // false: back to its format
    Measured lowest;
    double snr_db;  // of that
  };

  explicit PrecisionWatch(std::vector<Role> roles);

  const std::vector<Role>& roles() const { return roles_; }
  // A check of all roles, in their order; sets their in_act.
  std::vector<Change> observe(std::span<RoleCheck> checks);
  bool in_act(size_t role) const { return state_[role].in_act; }

  const std::vector<PrecisionRole>& state() const { return state_; }
  // Sets a state() of the same roles; false, and nothing changes, if it belongs to others.
  bool restore(std::span<const PrecisionRole> state);

 private:
  std::vector<Role> roles_;
  std::vector<PrecisionRole> state_;
};

}  // namespace nmoe
