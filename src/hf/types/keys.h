// The keys of a config.json while it is read. Private to hf/.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace nmoe {

// Python writes infinity as a bare word, which is no JSON: the text with a string "Infinity" in its place.
std::string with_quoted_infinity(std::string_view text);

// A key and the other name under which some versions of transformers keep it.
struct KeyNames {
  std::string_view name;
  std::string_view alias = {};
};

// What a file says that nmoe does not have, while the rest of it is read: all of it is told at once.
class Lacking {
 public:
  explicit Lacking(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  void add(std::string what) { all_.push_back(std::move(what)); }
  bool empty() const { return all_.empty(); }
  // Of all of it, of which there is some.
  Error error() const;

 private:
  std::string path_;
  std::vector<std::string> all_;  // "key = value: what is not there"
};

// The keys of one object of the file. It remembers which were asked for; finish() reports the rest as lacking. A null
// counts as absent. What no version of transformers could read is an Error (runtime) at once.
class Keys {
 public:
  using Json = nlohmann::ordered_json;

  // `prefix` is the object's own key with a dot, "" for the whole file. Object and `lacking` must outlive it.
  Keys(const Json& object, Lacking& lacking, std::string prefix)
      : object_(object), lacking_(lacking), prefix_(std::move(prefix)) {}

  Lacking& lacking() const { return lacking_; }
  Error error(std::string_view key, const std::string& what, const std::string& remedy = kBroken) const;
  // nmoe does not have what the key says.
  void lacks(std::string_view key, const std::string& what) const;

  const Json* find(std::string_view key);
  // Several names of the same value; those that are there must agree.
  const Json* find(const KeyNames& names);
  bool has(std::string_view key) { return find(key) != nullptr; }
  bool says_null(std::string_view key) const { return object_.contains(key) && object_.at(std::string(key)).is_null(); }

  int64_t at_least(int64_t min, const KeyNames& names);
  int64_t at_least(int64_t min, const KeyNames& names, int64_t otherwise);
  double positive(std::string_view key);
  double positive(std::string_view key, double otherwise);
  bool flag(std::string_view key);
  bool flag(std::string_view key, bool otherwise);
  std::string text(std::string_view key, std::string otherwise);

  // Every value but this one is lacking; absent means it.
  void only(std::string_view key, const Json& wanted, const std::string& why = "nmoe has no counterpart");
  // Every value is.
  void none(std::string_view key, const std::string& why);
  void ignore(std::string_view key) { asked_.emplace(key); }

  void finish() const;

  static constexpr const char* kBroken = "fetch the file again: transformers would refuse it too";

 private:
  std::string said(std::string_view key, const std::string& what) const;
  const Json& need(const KeyNames& names);
  int64_t checked_integer(const Json& value, int64_t min, std::string_view key) const;
  double checked_number(const Json& value, std::string_view key) const;
  bool checked_flag(const Json& value, std::string_view key) const;

  const Json& object_;
  Lacking& lacking_;
  std::string prefix_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace nmoe
