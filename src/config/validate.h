// Rules that bind several keys. Limits of a single key are part of its description
// (config/schema.h).
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace nmoe {

struct Issue {
  std::vector<std::string> keys;  // keys that contradict each other
  std::string what;               // these with their values, and why
  std::string remedy;
};

// The rules that `config` violates, given that every key is within its own limits. Keys without effect are ignored, and
// no two issues share a key, since the second might follow from the first.
std::vector<Issue> find_issues(const Config& config);

}  // namespace nmoe
