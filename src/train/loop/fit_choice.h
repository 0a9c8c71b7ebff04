// What `n train --fit` trains with.
#pragma once

#include "config/config.h"

namespace nmoe {

// `config` with the keys of the first of plan_fit()'s choices (train/plan/fit_plan.h), on this machine, all of whose
// ranks this process drives. A run that goes on (`resume`, and it has a checkpoint) keeps what its checkpoint has, so
// that it never chooses twice, unless that no longer goes with the rest of `config`, such as other ranks. Says which,
// as TOML. Errors (usage): nothing fits, naming what would with keys that round more; several processes.
Config choose_fit(const Config& config, bool resume);

}  // namespace nmoe
