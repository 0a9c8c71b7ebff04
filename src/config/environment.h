// Environment variables in configuration strings.
#pragma once

#include <string>
#include <string_view>

namespace nmoe {

// Replaces ${NMOE_NAME} by that variable's value, and ${NMOE_NAME:-default} by its value or, when
// it is unset or empty, by the default (which may not contain a "}"). A name has capital letters, digits and '_'. Error
// (usage), beginning with `place`, for any other ${...}, for one without end, for a variable whose name says that it
// holds a secret (checkpoints would keep it), for one that is unset and has no default, and for one whose value
// contains a "${".
std::string expand_environment(std::string_view text, std::string_view place);

}  // namespace nmoe
