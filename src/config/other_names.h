// What other systems call the keys of the configuration.
#pragma once

#include <span>
#include <string_view>

namespace nmoe {

struct OtherNames {
  std::string_view key;        // ours
  std::string_view names;      // others' names of it, a space between two
  std::string_view note = "";  // how the value is counted here, where that differs
};

// No name stands twice, and none is a name of ours.
std::span<const OtherNames> other_names();

// The entry that has `name`, or null.
const OtherNames* find_other_name(std::string_view name);

}  // namespace nmoe
