// A run's row for programs.
#pragma once

#include "base/json.h"
#include "track/runs.h"

namespace nmoe {

// By the names of run_query.h, in the order in which people read them; null of what is not known.
nlohmann::ordered_json run_json(const RunRow& run);

}  // namespace nmoe
