// The reference of all keys, made from their description.
#pragma once

#include <string>

namespace nmoe {

// Markdown: every key with its default, meaning, limits and what it needs to have an effect. docs/config.md is this.
std::string config_reference();

}  // namespace nmoe
