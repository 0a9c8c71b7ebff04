#include "hf/types/keys.h"

#include <fmt/ranges.h>

#include "hf/types/features.h"

namespace nmoe {

using Json = Keys::Json;

std::string with_quoted_infinity(std::string_view text) {
  constexpr std::string_view kWord = "Infinity";
  std::string quoted;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!in_string && text.substr(i).starts_with(kWord)) {
      quoted += fmt::format("\"{}\"", kWord);
      i += kWord.size() - 1;
      continue;
    }
    quoted += text[i];
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\' && i + 1 < text.size()) quoted += text[++i];
  }
  return quoted;
}

Error Lacking::error() const {
  constexpr const char* kRemedy =
      "docs/huggingface.md lists the types that nmoe reads, and what each may have; remove a key only if it changes no "
      "result";
  if (all_.size() == 1) return runtime_error(fmt::format("'{}': {}", path_, all_.front()), kRemedy);
  return runtime_error(
      fmt::format("'{}': {} things are not supported:\n  {}", path_, all_.size(), fmt::join(all_, "\n  ")), kRemedy);
}

std::string Keys::said(std::string_view key, const std::string& what) const {
  const auto entry = object_.find(key);
  const std::string value = entry == object_.end() ? "" : " = " + entry->dump();
  return fmt::format("{}{}{}: {}", prefix_, key, value, what);
}

Error Keys::error(std::string_view key, const std::string& what, const std::string& remedy) const {
  return runtime_error(fmt::format("'{}': {}", lacking_.path(), said(key, what)), remedy);
}

void Keys::lacks(std::string_view key, const std::string& what) const { lacking_.add(said(key, what)); }

const Json* Keys::find(std::string_view key) {
  asked_.emplace(key);
  const auto entry = object_.find(key);
  return entry == object_.end() || entry->is_null() ? nullptr : &*entry;
}

const Json* Keys::find(const KeyNames& names) {
  const Json* found = find(names.name);
  if (names.alias.empty()) return found;
  const Json* other = find(names.alias);
  if (found != nullptr && other != nullptr && *found != *other) {
    throw error(names.name, fmt::format("{}{} = {} says otherwise", prefix_, names.alias, other->dump()),
                "keep one of the two keys");
  }
  return found != nullptr ? found : other;
}

int64_t Keys::at_least(int64_t min, const KeyNames& names) { return checked_integer(need(names), min, names.name); }

int64_t Keys::at_least(int64_t min, const KeyNames& names, int64_t otherwise) {
  const Json* value = find(names);
  return value == nullptr ? otherwise : checked_integer(*value, min, names.name);
}

double Keys::positive(std::string_view key) { return checked_number(need({key}), key); }

double Keys::positive(std::string_view key, double otherwise) {
  const Json* value = find(key);
  return value == nullptr ? otherwise : checked_number(*value, key);
}

bool Keys::flag(std::string_view key) { return checked_flag(need({key}), key); }

bool Keys::flag(std::string_view key, bool otherwise) {
  const Json* value = find(key);
  return value == nullptr ? otherwise : checked_flag(*value, key);
}

std::string Keys::text(std::string_view key, std::string otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) throw error(key, "must be a string");
  return value->get<std::string>();
}

void Keys::only(std::string_view key, const Json& wanted, const std::string& why) {
  const Json* value = find(key);
  if (value != nullptr && *value != wanted) lacks(key, fmt::format("{}; only {} is supported", why, wanted.dump()));
}

void Keys::none(std::string_view key, const std::string& why) {
  if (find(key) != nullptr) lacks(key, why);
}

void Keys::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (asked_.contains(key)) continue;
    const std::string_view feature = feature_of_key(key);
    lacks(key, feature.empty() ? "nmoe does not know this key"
                               : fmt::format("nmoe does not know this key, and has no {}", feature));
  }
}

const Json& Keys::need(const KeyNames& names) {
  const Json* value = find(names);
  if (value == nullptr) throw error(names.name, "is missing", "write it into the file, with the model's value");
  return *value;
}

int64_t Keys::checked_integer(const Json& value, int64_t min, std::string_view key) const {
  if (!value.is_number_integer() || value.get<int64_t>() < min) {
    throw error(key, fmt::format("must be an integer of at least {}", min));
  }
  return value.get<int64_t>();
}

double Keys::checked_number(const Json& value, std::string_view key) const {
  if (!value.is_number() || !(value.get<double>() > 0.0)) throw error(key, "must be a number above 0");
  return value.get<double>();
}

bool Keys::checked_flag(const Json& value, std::string_view key) const {
  if (!value.is_boolean()) throw error(key, "must be true or false");
  return value.get<bool>();
}

}  // namespace nmoe
