// The end of a file to which lines are added, such as a run's train.log, for those who show it.
#pragma once

#include <string>

#include "base/files.h"

namespace nmoe {

// The last lines of a text, at most `max_bytes` of them; the last one may still be being written. "" where there is no
// file.
std::string log_tail(const fs::path& path, size_t max_bytes = size_t{64} << 10);

}  // namespace nmoe
