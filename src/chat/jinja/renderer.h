// Runs a template's tree.
#pragma once

#include <ctime>
#include <map>
#include <string>

#include "chat/jinja/ast.h"

namespace nmoe::jinja {

using Context = std::map<std::string, Value>;

// What the template prints at the time `now`. Failure, with its line, when it cannot go on.
Text render(const Body& body, const Context& context, const std::tm& now);

}  // namespace nmoe::jinja
