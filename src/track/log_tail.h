// The end of a run's train.log, for those who show it.
#pragma once

#include <string>

#include "base/files.h"

namespace nmoe {

// The last lines of a text, at most 64 KiB of them; the last one may still be being written. "" where there is no file.
std::string log_tail(const fs::path& path);

}  // namespace nmoe
