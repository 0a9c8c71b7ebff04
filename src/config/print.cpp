#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "config/load.h"
#include "config/schema.h"

namespace nmoe {
namespace {

// A longer value pushes its own comment to the right, not those of the whole section.
constexpr size_t kMaxValueWidth = 24;

// name = value  # meaning, in three columns.
std::string print_section(std::span<const Field> fields) {
  size_t name_width = 0, value_width = 0;
  for (const Field& field : fields) {
    name_width = std::max(name_width, field.name().size());
    value_width = std::max(value_width, std::min(to_toml(field.get()).size(), kMaxValueWidth));
  }
  std::string text = fmt::format("\n[{}]\n", fields.front().section());
  for (const Field& field : fields) {
    text += fmt::format("{:<{}} = {:<{}}  # {}", field.name(), name_width, to_toml(field.get()), value_width,
                        field.meaning);
    std::vector<std::string> names;
    for (const std::string& one : field.names) names.push_back(to_toml(one));
    if (!names.empty()) text += fmt::format("; {}", join_or(names));
    text += '\n';
  }
  return text;
}

}  // namespace

std::string print_config(const Config& config) {
  Config copy = config;
  std::vector<Field> fields = describe(copy);
  std::erase_if(fields, [](const Field& field) { return !field.shown(); });

  std::string text = "# The resolved configuration: every key that has an effect.\n";
  for (auto begin = fields.begin(); begin != fields.end();) {
    const auto end =
        std::find_if(begin, fields.end(), [&](const Field& field) { return field.section() != begin->section(); });
    text += print_section({begin, end});
    begin = end;
  }
  return text;
}

std::string config_lines(const Config& config) {
  Config copy = config;
  std::string lines;
  for (const Field& field : describe(copy)) {
    if (field.shown()) lines += fmt::format("{}={}\n", field.key, to_toml(field.get()));
  }
  return lines;
}

std::string config_json(const Config& config) {
  Config copy = config;
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Field& field : describe(copy)) {
    if (!field.shown()) continue;
    std::visit([&](const auto& value) { json[field.key] = value; }, field.get());
  }
  return json_text(json);
}

}  // namespace nmoe
