// A configuration value between TOML and the typed structs.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace nmoe {

// An enumeration's value is its name.
using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

// The value as TOML text; a double in the fewest digits that read back as the same double.
std::string to_toml(const Value& value);

}  // namespace nmoe
