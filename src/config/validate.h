// Rules that bind several keys. Limits of a single key are part of its description
// (config/schema.h).
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace nmoe {

struct Issue {
  std::vector<std::string> keys;  // those that do not go together
  std::string what;               // they with their values, and why not
  std::string remedy;
};

// The rules that `config` breaks; every key is within its own limits. Keys without effect are not looked at, and no two
// issues share a key: the second might follow from the first.
std::vector<Issue> find_issues(const Config& config);

}  // namespace nmoe
