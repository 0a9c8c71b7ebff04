#include "config/unknown_key.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "config/other_names.h"

namespace nmoe {
namespace {

std::vector<std::string> section_names(std::span<const Field> fields) {
  std::vector<std::string> names;
  for (const Field& field : fields) {
    if (names.empty() || names.back() != field.section()) names.emplace_back(field.section());
  }
  return names;
}

// The remedy for a key that does not exist: the known key it was probably meant to be, or the
// choice there is.
std::string suggest_key(std::span<const Field> fields, std::string_view unknown) {
  const size_t dot = unknown.rfind('.');
  const std::string_view section = dot == std::string_view::npos ? "" : unknown.substr(0, dot);
  const std::string_view name = dot == std::string_view::npos ? unknown : unknown.substr(dot + 1);

  if (const OtherNames* known = find_other_name(name)) {
    return known->note.empty() ? fmt::format("did you mean {}?", known->key)
                               : fmt::format("did you mean {} ({})?", known->key, known->note);
  }
  std::vector<std::string> all_keys, names_here, namesakes;
  for (const Field& field : fields) {
    all_keys.push_back(field.key);
    if (field.section() == section) names_here.emplace_back(field.name());
    // A base has the names of the model's own sizes, and is seldom what is meant.
    const bool is_of_base = field.key.starts_with("model.scaling.base.");
    if (field.name() == name && !is_of_base) namesakes.push_back(field.key);
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

}  // namespace

bool is_section(std::span<const Field> fields, std::string_view name) {
  return std::ranges::find(fields, name, &Field::section) != fields.end();
}

Error unknown_key(std::span<const Field> fields, const Entry& entry) {
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

}  // namespace nmoe
