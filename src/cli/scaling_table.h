// What a rule of [model.scaling] makes of each weight's settings, as n plan prints it.
#pragma once

#include <string>

#include "config/config.h"

namespace nmoe::cli {

// A table with a row for each weight (the same of several layers once) and the sources of its factors; "" without a
// rule. model.vocab_size is resolved.
std::string scaling_table(const Config& config);

}  // namespace nmoe::cli
