// From tokens to a tree.
#pragma once

#include "chat/jinja/ast.h"
#include "chat/jinja/text.h"

namespace nmoe::jinja {

// Failure, with its line, for what is no template and for what of Jinja is not supported.
Body parse_template(const Text& source);

}  // namespace nmoe::jinja
