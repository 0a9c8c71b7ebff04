// What a process takes beside arenas and data: found by doing what a run does, in small, before it begins.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace nmoe {

// The most memory that this process takes beside the arenas of `ranks` ranks and the data, while it trains `config`
// (vocab_size resolved): the program, its libraries, and what these allocate. Rehearses on the device of `run`, which
// is config.run's, or the CPU where that is not here. Loads whatever a run loads lazily. Writes to a folder for
// temporary files, and removes what it wrote. Resets the process's peak; where `config` is for the CPU the process has
// one heap from here on (base/process.h).
int64_t rehearsed_process_bytes(const Config& config, const RunConfig& run, int64_t ranks);

}  // namespace nmoe
