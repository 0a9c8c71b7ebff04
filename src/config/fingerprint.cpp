#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "config/load.h"
#include "config/schema.h"

namespace nmoe {
namespace {

// Unlike any TOML value when the key has no effect.
std::string value_or_unused(const Field& field) { return field.shown() ? to_toml(field.get()) : "unused"; }

}  // namespace

std::string config_fingerprint(const Config& config) {
  Config copy = config;
  std::vector<std::string> lines;
  for (const Field& field : describe(copy)) {
    if (field.defines_run && field.shown()) {
      lines.push_back(fmt::format("{}={}\n", field.key, to_toml(field.get())));
    }
  }
  // Sorted, so that the order of the description does not matter.
  std::ranges::sort(lines);
  Sha256 hash;
  for (const std::string& line : lines) hash.update(line);
  return hash.finish();
}

namespace {

std::string differences(Config a, Config b, std::string_view section) {
  const std::vector<Field> fields_a = describe(a), fields_b = describe(b);
  std::vector<std::string> lines;
  for (size_t i = 0; i < fields_a.size(); ++i) {
    if (!fields_a[i].key.starts_with(section) || (!fields_a[i].defines_run && !fields_b[i].defines_run)) continue;
    const std::string value_a = value_or_unused(fields_a[i]);
    const std::string value_b = value_or_unused(fields_b[i]);
    if (value_a != value_b) {
      lines.push_back(fmt::format("{}: {} != {}", fields_a[i].key, value_a, value_b));
    }
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace

std::string explain_difference(const Config& a, const Config& b) { return differences(a, b, ""); }

std::string explain_difference(const ModelConfig& a, const ModelConfig& b) {
  Config with_a, with_b;
  with_a.model = a;
  with_b.model = b;
  return differences(std::move(with_a), std::move(with_b), "model.");
}

}  // namespace nmoe
