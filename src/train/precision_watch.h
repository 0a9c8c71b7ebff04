// Whether the parts of layers bear the format of their products: from what rounding loses of operands, the decision for
// which it is left, and for which it is taken up again. Pure: no device, no clock.
//
// A role is a part of a layer (WeightPart), which has one format. What is measured of its products are operands and
// outputs (Measured), each a signal-to-noise ratio in dB: -10 log10 of the mean share that rounding loses
// (RoundingCounts). E4M3 leaves 31.5 dB of whatever is spread over less than 14 binades of a block, E2M1 13 to 19 dB.
// An outlier that leaves nothing of its block costs that block everything: with one row of blocks in 600 lost, E4M3 is
// below its threshold. Errors of operands add up: with 28 dB each, outputs have 25, unless what is summed cancels out.
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
#include "model/spec.h"
#include "model/weight.h"

namespace nmoe {

// What a check saw of one operand or output, over a role's weights.
struct MeasuredQuality {
  double snr_db = std::numeric_limits<double>::infinity();  // of the weight with the lowest; infinite without values
  double underflow_share = 0.0;  // of an operand's values that are not zero, the largest of its weights
  double saturated_share = 0.0;  // same

  void add(const RoundingCounts& counts);  // a weight's
};

struct RoleCheck {
  int64_t layer = 0;
  WeightPart part = WeightPart::kOther;
  OperandFormat format = OperandFormat::kAct;
  std::array<MeasuredQuality, kNumMeasured> qualities = {};  // by Measured
  bool in_act = false;  // whether it computes without its format, as decided by now

  double snr_db(Measured what) const { return qualities[static_cast<size_t>(what)].snr_db; }
  double margin_db(Measured what) const;  // over the threshold of its format
  Measured lowest() const;                // the one with the least margin
};

std::string_view part_name(WeightPart part);         // "experts", as in [precision]
std::string_view measured_name(Measured what);       // "inputs"
std::string_view format_name(OperandFormat format);  // "fp8"

class PrecisionWatch {
 public:
  static constexpr size_t kVotes = 4;       // checks that count, the last ones
  static constexpr int kVotesToLeave = 3;   // of these below the threshold: the role goes to act
  static constexpr double kMarginDb = 1.5;  // over the thresholds in all of them: it returns
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
  void leave_all();  // every role goes to act: for a plan of memory

  const std::vector<PrecisionRole>& state() const { return state_; }
  // As state() was of such roles; false, and nothing changed, where it is not of these.
  bool restore(std::span<const PrecisionRole> state);

 private:
  std::vector<Role> roles_;
  std::vector<PrecisionRole> state_;
};

}  // namespace nmoe
