// Environment variables in configuration strings.
#pragma once

#include <string>
#include <string_view>

namespace nmoe {

// Replaces ${NMOE_NAME} by that variable's value, and ${NMOE_NAME:-default} by its value or, when
// it is unset or empty, by the default (which may not contain a "}"). Error (usage), beginning with
// `place`, for any other ${...}, for one without end, for a variable that is unset and has no
// default, and for a variable whose value contains a "${".
std::string expand_environment(std::string_view text, std::string_view place);

}  // namespace nmoe
