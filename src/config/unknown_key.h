// What is said of a key that does not exist.
#pragma once

#include <span>
#include <string_view>

#include "base/error.h"
#include "config/entries.h"
#include "config/schema.h"

namespace nmoe {

bool is_section(std::span<const Field> fields, std::string_view name);

// `entry`'s key is none of `fields`. The remedy names the key that it probably was meant to be, by its spelling or by
// what other systems call theirs (other_names.h), or the choice there is.
Error unknown_key(std::span<const Field> fields, const Entry& entry);

}  // namespace nmoe
