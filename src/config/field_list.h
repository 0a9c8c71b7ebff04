// Collects descriptions of keys for config/schema.cpp: how the members of each type are read and written.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "config/field.h"
#include "config/names.h"
#include "config/per_layer.h"
#include "config/span.h"

namespace nmoe {

// A TOML integer serves where a double is wanted; nothing else converts.
template <class T>
std::optional<T> value_as(const Value& value) {
  if constexpr (std::is_same_v<T, double>) {
    if (const int64_t* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  }
  if (const T* typed = std::get_if<T>(&value)) return *typed;
  return std::nullopt;
}

// Collects the fields of a Config, section by section.
class FieldList {
 public:
  void section(std::string_view name) {
    section_ = name;
    condition_.clear();
    met_ = true;
  }
  // The section's keys from here on need this.
  void following_need(bool met, std::string_view what) {
    condition_ = what;
    met_ = met;
  }

  // A key for a member of a type that a Value has. References that key() returns
  // are good until its next call.
  template <class T, class Limits>
  Field& key(std::string_view name, T& member, Limits limits, std::string_view meaning) {
    Field& field = add(name, meaning);
    field.allowed = limits.describe();
    field.is_text = std::is_same_v<T, std::string>;
    field.get = [&member] { return Value(member); };
    field.set = [&member, limits](const Value& value) {
      const std::optional<T> typed = value_as<T>(value);
      if (!typed || !limits.contains(*typed)) return false;
      member = *typed;
      return true;
    };
    return field;
  }

  // A key for a member with a few named values.
  template <class T, class Enum, size_t N>
  Field& key(std::string_view name, T& member, const Named<Enum> (&table)[N], std::string_view meaning) {
    Field& field = add(name, meaning);
    set_names<Enum>(field, table);
    field.is_text = true;
    const std::span<const Named<Enum>> entries = table;
    field.get = [&member, entries, key = field.key] { return Value(std::string(name_of(entries, member, key))); };
    field.set = [&member, entries](const Value& value) {
      const std::string* text = std::get_if<std::string>(&value);
      if (text == nullptr) return false;
      const auto entry = std::ranges::find(entries, *text, &Named<Enum>::name);
      if (entry == entries.end()) return false;
      member = entry->value;
      return true;
    };
    return field;
  }

  // A key for a whole number that is no member.
  template <class Limits>
  Field& key_of(std::string_view name, Limits limits, std::string_view meaning, std::function<int64_t()> get,
                std::function<void(int64_t)> set) {
    Field& field = add(name, meaning);
    field.allowed = limits.describe();
    field.get = [get = std::move(get)] { return Value(get()); };
    field.set = [set = std::move(set), limits](const Value& value) {
      const auto* number = std::get_if<int64_t>(&value);
      if (number == nullptr || !limits.contains(*number)) return false;
      set(*number);
      return true;
    };
    return field;
  }

  // A key for a length, which is at most `max` where it is a count.
  Field& key(std::string_view name, Span& member, int64_t max, bool may_be_rest, std::string_view meaning) {
    Field& field = add(name, meaning);
    field.allowed = fmt::format("an integer from 0 to {}, or a share of the run as \"5%\"{}", max,
                                may_be_rest ? ", or \"rest\"" : "");
    field.get = [&member] { return member.value(); };
    field.set = [&member, max, may_be_rest](const Value& value) {
      const std::optional<Span> span = Span::of(value);
      if (!span || span->count() < 0 || span->count() > max) return false;
      if (span->kind() == Span::Kind::kRest && !may_be_rest) return false;
      member = *span;
      return true;
    };
    return field;
  }

  // A key for a choice among named values that every layer has (config/per_layer.h). `example`: a list for layers.
  template <class Enum, size_t N>
  Field& key(std::string_view name, PerLayer<Enum>& member, const Named<Enum> (&table)[N], std::string_view meaning,
             std::string_view example) {
    Field& field = add(name, meaning);
    set_names<Enum>(field, table);
    field.allowed += fmt::format(", or a list for layers, as \"{}\"", example);
    field.details = kPerLayerGrammar;
    field.is_text = true;
    const std::span<const Named<Enum>> entries = table;
    field.get = [&member, entries, key = field.key] {
      std::vector<LayerRun<std::string_view>> runs;
      for (const LayerRun<Enum>& run : member.runs()) {
        runs.push_back({run.count, name_of(entries, run.value, key)});
      }
      return Value(write_layer_runs(runs));
    };
    field.set = [&member, entries](const Value& value) {
      const std::string* text = std::get_if<std::string>(&value);
      const auto named = text == nullptr ? std::nullopt : read_layer_runs(*text);
      if (!named) return false;
      std::vector<LayerRun<Enum>> runs;
      for (const LayerRun<std::string_view>& run : *named) {
        const auto entry = std::ranges::find(entries, run.value, &Named<Enum>::name);
        if (entry == entries.end()) return false;
        runs.push_back({run.count, entry->value});
      }
      member = PerLayer<Enum>(runs);
      return true;
    };
    return field;
  }

  // A key that sets all of `members`, which have keys of their own.
  template <class Limits>
  void shorthand(std::string_view name, const std::vector<std::pair<std::string, double*>>& members, Limits limits,
                 std::string_view meaning) {
    Field& field = add(name, meaning);
    for (const auto& [key, member] : members) field.stands_for.push_back(key);
    field.left_out = true;
    field.defines_run = false;  // what it sets does
    field.allowed = limits.describe();
    field.get = [members] { return Value(*members.front().second); };
    field.set = [members, limits](const Value& value) {
      const std::optional<double> number = value_as<double>(value);
      if (!number || !limits.contains(*number)) return false;
      for (const auto& [key, member] : members) *member = *number;
      return true;
    };
  }

  std::vector<Field> take() { return std::move(fields_); }

 private:
  Field& add(std::string_view name, std::string_view meaning) {
    Field& field = fields_.emplace_back();
    field.key = fmt::format("{}.{}", section_, name);
    field.meaning = meaning;
    if (!condition_.empty()) field.needs(met_, condition_);
    return field;
  }

  // `key`: whose value it is.
  template <class Enum>
  static std::string_view name_of(std::span<const Named<Enum>> entries, const std::type_identity_t<Enum>& value,
                                  std::string_view key) {
    const auto entry = std::ranges::find(entries, value, &Named<Enum>::value);
    NMOE_CHECK(entry != entries.end(), "{} has a value without a name", key);
    return entry->name;
  }

  template <class Enum>
  static void set_names(Field& field, std::span<const Named<Enum>> table) {
    std::vector<std::string> quoted_names;
    for (const Named<Enum>& entry : table) {
      field.names.emplace_back(entry.name);
      quoted_names.push_back(to_toml(field.names.back()));
    }
    field.allowed = join_or(quoted_names);
  }

  std::vector<Field> fields_;
  std::string section_;
  std::string condition_;  // of the keys that follow; "" for none
  bool met_ = true;
};

}  // namespace nmoe
