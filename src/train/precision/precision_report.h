// Checks of precision as numbers to log, and the message when a role changes.
#pragma once

#include <string>

#include "config/config.h"
#include "track/record.h"
#include "train/precision/precision_checks.h"

namespace nmoe {

// Adds precision/... to `record` (track/tags/precision.h has their meanings).
void report_precision(const PrecisionReport& report, MetricRecord& record);

// A sentence.
std::string precision_message(const PrecisionWatch::Change& change, PrecisionFallback fallback);

}  // namespace nmoe
