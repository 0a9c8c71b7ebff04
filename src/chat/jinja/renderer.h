// Runs a template's tree.
#pragma once

#include <map>
#include <string>

#include "chat/jinja/ast.h"

namespace nmoe::jinja {

using Context = std::map<std::string, Value>;

// What the template prints. Failure, with its line, when it cannot go on.
Text render(const Body& body, const Context& context);

}  // namespace nmoe::jinja
