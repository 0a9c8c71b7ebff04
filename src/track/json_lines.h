// Files of JSON, one value a line, to which a process adds while others read.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/files.h"
#include "base/json.h"

namespace nmoe {

// One write at the end of the file, made where there is none. A line that a killed process left unfinished gets an end
// before. Error (runtime) where that fails.
void append_line(const fs::path& path, std::string_view line);

// Calls `take` with each value of the last `max_bytes` of whole lines, in order. Lines that are no JSON, or in which
// `take` finds no such member or type, are passed over; nothing where there is no file.
void each_json_line(const fs::path& path, size_t max_bytes,
                    const std::function<void(const nlohmann::ordered_json&)>& take);

}  // namespace nmoe
