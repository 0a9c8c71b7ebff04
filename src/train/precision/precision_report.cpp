#include "train/precision/precision_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "track/tags/precision.h"

namespace nmoe {

void report_precision(const PrecisionReport& report, MetricRecord& record) {
  double lowest = std::numeric_limits<double>::infinity(), lowest_output = lowest;
  int left = 0;
  for (const RoleCheck& role : report.roles) {
    left += role.in_act ? 1 : 0;
    for (size_t i = 0; i < role.qualities.size(); ++i) {
      const MeasuredQuality& quality = role.qualities[i];
      const auto what = static_cast<Measured>(i);
      double& least = is_output(what) ? lowest_output : lowest;
      least = std::min(least, quality.snr_db);
      const std::string operand = fmt::format("{}_{}", part_name(role.part), measured_name(what));
      const auto put = [&](const Metric& metric, double value) { record.put(metric, {role.layer, operand}, value); };
      if (std::isfinite(quality.snr_db)) put(tags::kPrecisionSnrDb, quality.snr_db);
      if (is_output(what)) continue;
      put(tags::kPrecisionUnderflowShare, quality.underflow_share);
      put(tags::kPrecisionSaturatedShare, quality.saturated_share);
    }
  }
  if (std::isfinite(lowest)) record.put(tags::kPrecisionLowestSnrDb, lowest);
  if (std::isfinite(lowest_output)) record.put(tags::kPrecisionLowestOutputSnrDb, lowest_output);
  record.put(tags::kPrecisionRolesLeft, left);
}

std::string precision_message(const PrecisionWatch::Change& change, PrecisionFallback fallback) {
  const std::string_view format = format_name(change.role.format), part = part_name(change.role.part);
  std::string what(measured_name(change.lowest));
  std::ranges::replace(what, '_', ' ');
  const double threshold = PrecisionWatch::threshold_db(change.role.format, change.lowest);
  const std::string place = fmt::format("layer {}: {}", change.role.layer, part);
  if (!change.to_act) {
    return fmt::format("{}: {} bear {} again ({:.1f} dB){}", place, measured_name(change.lowest), format, change.snr_db,
                       fallback == PrecisionFallback::kAct ? fmt::format("; back to {}", format) : "");
  }
  return fmt::format(
      "warning: {}: rounded to {}, {} keep {:.1f} dB, below {} in {} of {} checks; {}", place, format, what,
      change.snr_db, threshold, PrecisionWatch::kVotesToLeave, PrecisionWatch::kVotes,
      fallback == PrecisionFallback::kAct
          ? "computed without it from the next step on"
          : fmt::format(
                "precision.fallback = \"act\" would compute them without it, as would precision.{} = \"device\"",
                part));
}

}  // namespace nmoe
