// TOML text as a flat list of keys with their values and places.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/value.h"

namespace nmoe {

struct Entry {
  std::string key;             // "model.moe.top_k"; for an empty table its own path
  std::optional<Value> value;  // nothing for what no key takes: other arrays than of strings, tables, dates
  std::string written;         // the value for messages
  std::string place;           // "quick.toml:12"
  bool is_table = false;       // an empty one; other tables appear through their keys
};

// The document's entries in the order of its lines; `name` stands for it in places. Error (usage)
// with file and line when the text is not TOML, has a key twice, or is nested too deep (toml_depth.h).
std::vector<Entry> read_entries(std::string_view toml, std::string_view name);

// One TOML value other than a table, without key and place; nothing when the text is not exactly
// that.
std::optional<Entry> read_value(std::string_view text);

}  // namespace nmoe
