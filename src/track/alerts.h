// What a run found amiss while it trained: <run.dir>/metrics/<run id>/alerts.jsonl, a line of JSON for each, in the
// order in which they were found. A rewind takes none back: they have happened.
//
//   {"ts_ms":1763850000000,"kind":"spike","step":120,"tag":"train/loss","value":9.31,"text":"step 120: ..."}
//
// The value is null where it is not finite. train/report/alert_watch.h has the rules, train/report/alert_desk.h writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace nmoe {

enum class AlertKind {
  kNonFinite,   // a loss, a norm or what routers say is not a number
  kSpike,       // a loss or a gradient's norm, far above what it was
  kCollapse,    // a router gives all tokens to as few experts as it can
  kDeadExpert,  // experts that get no token
  kSlow,        // steps take longer than they did
  kSilent,      // no step was logged for long, by one rank or all
};

std::string_view alert_kind_name(AlertKind kind);  // "non_finite", "spike", "collapse", "dead_expert", "slow", "silent"

struct Alert {
  AlertKind kind = AlertKind::kNonFinite;
  int64_t step = 0;
  int64_t ts_ms = 0;   // when it was found, milliseconds since 1970 UTC
  std::string tag;     // of the metric that shows it; "" of silence
  double value = 0.0;  // of that, as recorded; seconds of silence
  std::string text;    // a sentence; may quote names from anywhere
};

// Beside the run's databases, such as metrics_path() names.
fs::path alerts_path(const fs::path& database);

// A line of that file, without its end.
std::string alert_json(const Alert& alert);

// One write to the file, which is made where there is none. Error (runtime) where that fails.
void append_alert(const fs::path& path, const Alert& alert);

// The last some hundred, oldest first; none where there is no file. A line that is still being written, or is damaged,
// is left out. For who follows a run: worth calling again when the file's size has changed.
std::vector<Alert> read_alerts(const fs::path& path);

}  // namespace nmoe
