// The error message for a key that does not exist.
#pragma once

#include <span>
#include <string_view>

#include "base/error.h"
#include "config/entries.h"
#include "config/schema.h"

namespace nmoe {

bool is_section(std::span<const Field> fields, std::string_view name);

// For an entry whose key is none of `fields`. The remedy names the key that was probably meant, judged by its spelling
// or by the names that other systems use (other_names.h), or else lists the possible ones.
Error unknown_key(std::span<const Field> fields, const Entry& entry);

}  // namespace nmoe
