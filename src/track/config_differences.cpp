#include "track/config_differences.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/json.h"

namespace nmoe {
namespace {

constexpr std::array<std::string_view, 3> kPlaces = {"run.name", "run.dir", "run.experiment"};

void flatten(const nlohmann::json& value, const std::string& key, std::map<std::string, std::string>& flat) {
  if (!value.is_object()) {
    flat[key] = json_text(value);
    return;
  }
  for (const auto& [name, member] : value.items()) flatten(member, key.empty() ? name : key + "." + name, flat);
}

}  // namespace

std::map<std::string, std::string> config_keys(const std::string& config) {
  std::map<std::string, std::string> flat;
  flatten(parse_json<nlohmann::json>(config), "", flat);
  return flat;
}

bool is_place(std::string_view key) { return std::ranges::find(kPlaces, key) != kPlaces.end(); }

std::vector<ConfigDifference> config_differences(std::span<const std::string> configs) {
  std::map<std::string, std::vector<std::string>> by_key;
  for (size_t i = 0; i < configs.size(); ++i) {
    for (const auto& [key, value] : config_keys(configs[i])) {
      if (is_place(key)) continue;
      auto& values = by_key[key];
      values.resize(configs.size());
      values[i] = value;
    }
  }
  std::vector<ConfigDifference> differences;
  for (auto& [key, values] : by_key) {
    if (std::ranges::adjacent_find(values, std::not_equal_to<>()) == values.end()) continue;
    differences.push_back({key, std::move(values)});
  }
  return differences;
}

}  // namespace nmoe
