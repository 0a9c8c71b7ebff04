// Where a run keeps what it writes.
#pragma once

#include "base/files.h"
#include "config/config.h"

namespace nmoe {

fs::path checkpoint_dir(const Config& config);  // its own: states to resume from
fs::path runs_path(const Config& config);       // the database of all runs under run.dir

}  // namespace nmoe
