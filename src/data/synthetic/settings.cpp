#include "data/synthetic/settings.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"

namespace nmoe {

SettingReader::SettingReader(std::string_view kind, std::span<const std::string> settings) : kind_(kind) {
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw usage_error(fmt::format("\"{}\" sets nothing", setting), "write --set key=value");
    }
    given_.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
}

const std::string* SettingReader::find(std::string_view key) const {
  const auto found =
      std::find_if(given_.rbegin(), given_.rend(), [&](const auto& entry) { return entry.first == key; });
  return found == given_.rend() ? nullptr : &found->second;
}

int64_t SettingReader::integer(std::string_view key, int64_t fallback, int64_t min, int64_t max) {
  int64_t value = fallback;
  if (const std::string* text = find(key)) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size() || value < min || value > max) {
      throw usage_error(fmt::format("{} = {} of the synthetic source {}", key, *text, kind_),
                        fmt::format("{} must be an integer from {} to {}", key, min, max));
    }
  }
  taken_.emplace_back(key, value);
  return value;
}

bool SettingReader::flag(std::string_view key, bool fallback) {
  bool value = fallback;
  if (const std::string* text = find(key)) {
    if (*text != "true" && *text != "false") {
      throw usage_error(fmt::format("{} = {} of the synthetic source {}", key, *text, kind_),
                        fmt::format("{} must be true or false", key));
    }
    value = *text == "true";
  }
  taken_.emplace_back(key, value ? 1 : 0);
  return value;
}

SyntheticSource::ResolvedSettings SettingReader::resolved() {
  std::vector<std::string> known;
  for (const auto& [key, value] : taken_) known.push_back(key);
  for (const auto& [key, value] : given_) {
    if (std::ranges::find(known, key) != known.end()) continue;
    const std::string typo = nearest(key, known);
    throw usage_error(
        fmt::format("the synthetic source {} has no setting \"{}\"", kind_, key),
        typo.empty() ? fmt::format("it has {}", join_or(known)) : fmt::format("did you mean \"{}\"?", typo));
  }
  return taken_;
}

}  // namespace nmoe
