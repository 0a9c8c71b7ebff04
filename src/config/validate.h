// Rules that bind several keys. Limits of a single key are part of its description
// (config/schema.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace nmoe {

struct Issue {
  std::vector<std::string> keys;  // those that do not go together
  std::string what;               // they with their values, and why not
  std::string remedy;
};

// The first rule that `config` breaks, if any; every key is within its own limits. Keys without
// effect are not looked at.
std::optional<Issue> find_issue(const Config& config);

}  // namespace nmoe
