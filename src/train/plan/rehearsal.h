// The memory that a process needs besides arenas and data, measured by a small rehearsal of a run before it begins.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace nmoe {

// The most memory that this process uses besides the arenas of `ranks` ranks and the data, while it trains `config`
// (vocab_size resolved): the program, its libraries, and what these allocate. Rehearses on the device of `run`, which
// is config.run, or specifies the CPU if that device is not present. Loads whatever a run loads lazily. Writes to a
// temporary folder and removes what it wrote. Resets the process's peak; if `config` is for the CPU, the process has
// one heap from then on (base/process.h).
int64_t rehearsed_process_bytes(const Config& config, const RunConfig& run, int64_t ranks);

}  // namespace nmoe
