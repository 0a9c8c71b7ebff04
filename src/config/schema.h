// Every key of the configuration, described once: name, meaning, limits, whether it defines the run
// and when it has an effect. Reading, overriding, printing, fingerprinting and comparing walk this
// one description.
#pragma once

#include <vector>

#include "config/config.h"
#include "config/field.h"

namespace nmoe {

// All keys, in the order in which they are printed; a section's keys are neighbours. The list and
// its order are the same for every Config; only `lacks` and `left_out` depend on the values, those
// at the time of the call.
std::vector<Field> describe(Config& config);

}  // namespace nmoe
