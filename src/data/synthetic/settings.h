// The "key=value" settings of a synthetic source.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/synthetic/source.h"

namespace nmoe {

// A source takes each of its settings once, then calls resolved().
class SettingReader {
 public:
  // Error (usage) on anything but "key=value".
  SettingReader(std::string_view kind, std::span<const std::string> settings);

  // The value of `key`, or `fallback` if it is not set. Error (usage) if it is not an integer from `min` to `max`.
  int64_t integer(std::string_view key, int64_t fallback, int64_t min, int64_t max);
  // "true" or "false".
  bool flag(std::string_view key, bool fallback);

  // The settings taken, flags as 0 and 1. Error (usage) if a key was given that was not taken.
  SyntheticSource::ResolvedSettings resolved();

 private:
  // The last value given for `key`, null if there is none.
  const std::string* find(std::string_view key) const;

  std::string kind_;
  std::vector<std::pair<std::string, std::string>> given_;
  SyntheticSource::ResolvedSettings taken_;
};

}  // namespace nmoe
