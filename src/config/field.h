// One key of a configuration, as config/schema.h describes it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/value.h"

namespace nmoe {

// One key of one described Config, which must outlive it: `get` and `set` refer to that Config's
// member.
struct Field {
  std::string key;                 // "model.moe.top_k"
  std::string meaning;             // a phrase, shown as the key's comment
  std::string allowed;             // the values it takes, as the end of "must be ..."
  std::vector<std::string> names;  // the values of an enumeration; empty for other keys
  bool is_text = false;            // whether its values are TOML strings
  std::function<Value()> get;
  std::function<bool(const Value&)> set;  // false, and nothing changed, if the value is not allowed
  bool defines_run = true;                // part of the fingerprint
  // Whether the key is as if it were not there: neither printed nor part of the fingerprint. Setting it is no error.
  bool left_out = false;
  // What the key lacks to have an effect under the Config's values when it was described, such as
  // `model.attention = "gqa"`. Empty: it has an effect.
  std::string lacks;
  std::vector<std::string> conditions;  // all that it needs, met or not
  std::string_view details;             // Markdown behind its entry in the reference; "": none
  // The keys that it stands for and sets, unless they are set themselves. It has no value of its own: get() gives that
  // of the first one. Empty for all keys that are no shorthand.
  std::vector<std::string> stands_for;

  bool is_shorthand() const { return !stands_for.empty(); }
  bool used() const { return lacks.empty(); }
  bool shown() const { return used() && !left_out; }
  std::string_view section() const;  // "model.moe"
  std::string_view name() const;     // "top_k"

  // For the description itself.
  Field& needs(bool met, std::string_view what);
  Field& not_in_fingerprint();
  // A new key whose default keeps old runs as they were must be left out at that default: in fingerprints it would
  // be a difference, and those runs could not be resumed.
  Field& leave_out_if(bool condition);
};

}  // namespace nmoe
