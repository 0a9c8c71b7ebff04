// Which program this is.
#pragma once

#include <string_view>

namespace nmoe {

std::string_view version();  // "0.1.0"
std::string_view commit();   // the git commit it was built from, "+" appended when the tree had changes; or "unknown"

}  // namespace nmoe
