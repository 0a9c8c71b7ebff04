// The runs that the commands of `n runs` are asked about.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"
#include "track/runs.h"

namespace nmoe::cli {

// The database below arguments.dir. Error (usage) where there is none.
RunStore open_runs(const RunsArguments& arguments, RunStore::Access access);

// Those named in arguments.runs, in their order.
std::vector<RunRow> named_runs(RunStore& store, const RunsArguments& arguments);

}  // namespace nmoe::cli
