// Configurations to start from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

// "tiny", "dense", "moe", "mla-moe".
std::vector<std::string> config_template_names();

// TOML with comments, for a small model that trains on a CPU and says what to raise on a GPU. `name` is one of those.
std::string_view config_template(std::string_view name);

}  // namespace nmoe
