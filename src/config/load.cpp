#include "config/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "config/entries.h"
#include "config/environment.h"
#include "config/schema.h"
#include "config/validate.h"

namespace nmoe {
namespace {

Field* find_field(std::vector<Field>& fields, std::string_view key) {
  const auto field = std::ranges::find(fields, key, &Field::key);
  return field == fields.end() ? nullptr : &*field;
}

bool is_section(const std::vector<Field>& fields, std::string_view name) {
  return std::ranges::find(fields, name, &Field::section) != fields.end();
}

std::vector<std::string> section_names(const std::vector<Field>& fields) {
  std::vector<std::string> names;
  for (const Field& field : fields) {
    if (names.empty() || names.back() != field.section()) names.emplace_back(field.section());
  }
  return names;
}

// The remedy for a key that does not exist: the known key it was probably meant to be, or the
// choice there is.
std::string suggest_key(const std::vector<Field>& fields, std::string_view unknown) {
  const size_t dot = unknown.rfind('.');
  const std::string_view section = dot == std::string_view::npos ? "" : unknown.substr(0, dot);
  const std::string_view name = dot == std::string_view::npos ? unknown : unknown.substr(dot + 1);

  std::vector<std::string> all_keys, names_here, namesakes;
  for (const Field& field : fields) {
    all_keys.push_back(field.key);
    if (field.section() == section) names_here.emplace_back(field.name());
    if (field.name() == name) namesakes.push_back(field.key);
  }
  if (const std::string typo = nearest(name, names_here); !typo.empty()) {
    return fmt::format("did you mean {}.{}?", section, typo);
  }
  if (!namesakes.empty()) return fmt::format("did you mean {}?", join_or(namesakes));
  if (!names_here.empty()) {
    return fmt::format("keys of [{}]: {}", section, fmt::join(names_here, ", "));
  }
  if (const std::string typo = nearest(unknown, all_keys); !typo.empty()) {
    return fmt::format("did you mean {}?", typo);
  }
  return fmt::format("sections: {}", fmt::join(section_names(fields), ", "));
}

Error unknown_key(const std::vector<Field>& fields, const Entry& entry) {
  if (is_section(fields, entry.key)) {
    return usage_error(fmt::format("{}: {} is a section, not a key", entry.place, entry.key),
                       fmt::format("write [{}] and its keys below", entry.key));
  }
  if (entry.is_table) {
    const std::vector<std::string> names = section_names(fields);
    const std::string typo = nearest(entry.key, names);
    return usage_error(
        fmt::format("{}: unknown section [{}]", entry.place, entry.key),
        typo.empty() ? fmt::format("sections: {}", fmt::join(names, ", ")) : fmt::format("did you mean [{}]?", typo));
  }
  return usage_error(fmt::format("{}: unknown key {}", entry.place, entry.key), suggest_key(fields, entry.key));
}

// "section.key=value". The value is TOML; text needs no quotes.
Entry read_override(std::vector<Field>& fields, std::string_view text) {
  const auto trimmed = [](std::string_view part) {
    const size_t begin = part.find_first_not_of(' ');
    if (begin == std::string_view::npos) return std::string_view();
    return part.substr(begin, part.find_last_not_of(' ') + 1 - begin);
  };
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    throw usage_error(fmt::format("--set {}: there is no value", text), "write --set section.key=value");
  }
  const std::string_view key = trimmed(text.substr(0, equals));
  const std::string_view value = trimmed(text.substr(equals + 1));

  const Field* field = find_field(fields, key);
  const bool is_quoted = value.starts_with('"') || value.starts_with('\'');
  std::optional<Entry> entry;
  if (is_quoted || field == nullptr || !field->is_text) entry = read_value(value);
  if (!entry) {
    entry.emplace();
    entry->value = std::string(value);
    entry->written = to_toml(*entry->value);
  }
  entry->key = key;
  entry->place = fmt::format("--set {}", text);
  return *entry;
}

void set_field(std::vector<Field>& fields, Entry entry) {
  Field* field = find_field(fields, entry.key);
  if (field == nullptr) {
    if (entry.is_table && is_section(fields, entry.key)) return;  // a section without keys
    throw unknown_key(fields, entry);
  }
  std::string* text = entry.value ? std::get_if<std::string>(&*entry.value) : nullptr;
  if (text != nullptr) {
    *text = expand_environment(*text, fmt::format("{}: {}", entry.place, entry.key));
    entry.written = to_toml(*text);
  }
  if (entry.value && field->set(*entry.value)) return;

  throw usage_error(
      fmt::format("{}: {} = {}, but it must be {}", entry.place, entry.key, entry.written, field->allowed),
      fmt::format("correct {} ({})", entry.key, field->meaning));
}

}  // namespace

Config load_config(const std::filesystem::path& path, std::span<const std::string> overrides) {
  if (!std::filesystem::exists(path)) {
    throw usage_error(fmt::format("there is no configuration file {}", path.string()), "check the path");
  }
  return parse_config(read_file(path), path.string(), overrides);
}

Config parse_config(std::string_view toml, std::string_view name, std::span<const std::string> overrides) {
  Config config;
  std::vector<Field> fields = describe(config);
  std::vector<std::pair<std::string, std::string>> places;  // of every key that is set
  const auto set = [&](Entry entry) {
    places.emplace_back(entry.key, entry.place);
    set_field(fields, std::move(entry));
  };
  for (const Entry& entry : read_entries(toml, name)) set(entry);
  for (const std::string& text : overrides) set(read_override(fields, text));

  // Which keys have an effect is known only now.
  fields = describe(config);
  for (const auto& [key, place] : places) {
    const Field* field = find_field(fields, key);
    if (field != nullptr && !field->used()) {
      throw usage_error(fmt::format("{}: {} has no effect because it needs {}", place, key, field->lacks),
                        fmt::format("remove it, or set {}", field->lacks));
    }
  }
  if (const std::optional<Issue> issue = find_issue(config)) {
    // Where the last of the keys was set, if any was.
    std::string_view place = name;
    for (const auto& [key, key_place] : places) {
      if (std::ranges::find(issue->keys, key) != issue->keys.end()) place = key_place;
    }
    throw usage_error(fmt::format("{}: {}", place, issue->what), issue->remedy);
  }
  return config;
}

}  // namespace nmoe
