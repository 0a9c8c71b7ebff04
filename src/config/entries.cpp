#include "config/entries.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "config/toml_depth.h"

namespace nmoe {
namespace {

// An entry and where its key is written.
struct PlacedEntry {
  toml::source_position position;
  Entry entry;
};

// Nothing where an element is none.
std::optional<Value> strings_of(const toml::array& list) {
  std::vector<std::string> strings;
  for (const toml::node& element : list) {
    const auto* text = element.as_string();
    if (text == nullptr) return std::nullopt;
    strings.push_back(text->get());
  }
  return strings;
}

Entry entry_of(const toml::node& node) {
  Entry entry;
  if (const auto* flag = node.as_boolean()) {
    entry.value = flag->get();
  } else if (const auto* integer = node.as_integer()) {
    entry.value = integer->get();
  } else if (const auto* real = node.as_floating_point()) {
    entry.value = real->get();
  } else if (const auto* text = node.as_string()) {
    entry.value = text->get();
  } else if (const auto* list = node.as_array()) {
    entry.value = strings_of(*list);
  }
  entry.is_table = node.is_table();
  entry.written = entry.value       ? to_toml(*entry.value)
                  : node.is_table() ? "{...}"
                  : node.is_array() ? "[...]"
                                    : "a date or time";
  return entry;
}

// A key in a path, quoted where TOML demands it: the key "model.dim" is not dim in [model].
std::string path_part(std::string_view key) {
  constexpr std::string_view kBare = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
  const bool is_bare = !key.empty() && key.find_first_not_of(kBare) == std::string_view::npos;
  return is_bare ? std::string(key) : to_toml(std::string(key));
}

void collect(const toml::table& table, const std::string& prefix, std::vector<PlacedEntry>& entries) {
  for (const auto& [key, node] : table) {
    const std::string path = prefix + path_part(key.str());
    const toml::table* inner = node.as_table();
    if (inner != nullptr && !inner->empty()) {
      collect(*inner, path + '.', entries);
      continue;
    }
    entries.push_back({key.source().begin, entry_of(node)});
    entries.back().entry.key = path;
  }
}

}  // namespace

std::vector<Entry> read_entries(std::string_view toml, std::string_view name) {
  if (const int64_t line = too_deep_line(toml); line > 0) {
    throw usage_error(fmt::format("{}:{}: tables and lists are more than {} levels deep", name, line, kMaxTomlDepth),
                      "nothing that can be set there is: correct the TOML there");
  }
  toml::table document;
  try {
    document = toml::parse(toml, name);
  } catch (const toml::parse_error& error) {
    throw usage_error(fmt::format("{}:{}: {}", name, error.source().begin.line, error.description()),
                      "correct the TOML there");
  }
  std::vector<PlacedEntry> placed;
  collect(document, "", placed);
  std::ranges::stable_sort(placed, [](const PlacedEntry& a, const PlacedEntry& b) { return a.position < b.position; });

  std::vector<Entry> entries;
  for (PlacedEntry& p : placed) {
    p.entry.place = fmt::format("{}:{}", name, p.position.line);
    entries.push_back(std::move(p.entry));
  }
  return entries;
}

std::optional<Entry> read_value(std::string_view text) {
  const std::string statement = fmt::format("value = {}", text);
  if (too_deep_line(statement) > 0) return std::nullopt;
  try {
    const toml::table document = toml::parse(statement);
    // More than the one key: the text went on after its value.
    if (document.size() != 1 || document["value"].is_table()) return std::nullopt;
    return entry_of(*document.get("value"));
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

}  // namespace nmoe
