#include "train/precision_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace nmoe {

void report_precision(const PrecisionReport& report, MetricRecord& record) {
  double lowest = std::numeric_limits<double>::infinity();
  int left = 0;
  for (const RoleCheck& role : report.roles) {
    left += role.in_act ? 1 : 0;
    lowest = std::min(lowest, role.snr_db());
    for (size_t i = 0; i < role.operands.size(); ++i) {
      const OperandQuality& operand = role.operands[i];
      const std::string prefix = fmt::format("precision/layer_{:02}/{}_{}/", role.layer, part_name(role.part),
                                             operand_name(static_cast<Operand>(i)));
      if (std::isfinite(operand.snr_db)) record.scalars.emplace_back(prefix + "snr_db", operand.snr_db);
      record.scalars.emplace_back(prefix + "underflow_share", operand.underflow_share);
      record.scalars.emplace_back(prefix + "saturated_share", operand.saturated_share);
    }
  }
  if (std::isfinite(lowest)) record.scalars.emplace_back("precision/lowest_snr_db", lowest);
  record.scalars.emplace_back("precision/roles_left", left);
}

std::string precision_message(const PrecisionWatch::Change& change, PrecisionFallback fallback) {
  const std::string_view format = format_name(change.role.format), part = part_name(change.role.part);
  const double threshold = PrecisionWatch::threshold_db(change.role.format);
  const std::string place = fmt::format("layer {}: {}", change.role.layer, part);
  if (!change.to_act) {
    return fmt::format("{}: {} bears {} again ({:.1f} dB){}", place, operand_name(change.lowest), format, change.snr_db,
                       fallback == PrecisionFallback::kAct ? fmt::format("; back to {}", format) : "");
  }
  return fmt::format(
      "warning: {}: rounded to {}, {} keep {:.1f} dB, below {} in {} of {} checks; {}", place, format,
      operand_name(change.lowest), change.snr_db, threshold, PrecisionWatch::kVotesToLeave, PrecisionWatch::kVotes,
      fallback == PrecisionFallback::kAct
          ? "computed without it from the next step on"
          : fmt::format(
                "precision.fallback = \"act\" would compute them without it, as would precision.{} = \"device\"",
                part));
}

}  // namespace nmoe
