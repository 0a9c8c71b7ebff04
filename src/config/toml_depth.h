// How deep TOML nests, found out without building anything: toml++ walks keys and values by recursion, up to their end
// and again to free them, and bounds values only.
#pragma once

#include <cstdint>
#include <string_view>

namespace nmoe {

inline constexpr int64_t kMaxTomlDepth = 32;  // levels of tables and lists; no file of ours has more than 6

// The line, from 1, on which `toml` goes beyond kMaxTomlDepth levels; 0: nowhere. Each part of a dotted key or of a
// header is a level (two in [[...]], whose tables are in lists), and each bracket of a value. Of text that is not TOML
// the answer holds up to its first fault.
int64_t too_deep_line(std::string_view toml);

}  // namespace nmoe
