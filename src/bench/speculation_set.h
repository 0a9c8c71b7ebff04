// configs/bench/speculation.jsonl, embedded when the program was built.
#pragma once

#include <string_view>

namespace nmoe {

std::string_view speculation_set();

}  // namespace nmoe
