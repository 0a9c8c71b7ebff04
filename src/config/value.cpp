#include "config/value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

namespace nmoe {
namespace {

std::string quote(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\u{:04x}", byte);
    } else {
      result += c;
    }
  }
  return result + '"';
}

struct TomlWriter {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const {
    std::string text = fmt::format("{}", value);
    // TOML tells a float from an integer by its point or exponent; inf and nan are floats as they
    // are.
    if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
    return text;
  }
  std::string operator()(const std::string& value) const { return quote(value); }
  std::string operator()(const std::vector<std::string>& values) const {
    std::vector<std::string> quoted;
    for (const std::string& value : values) quoted.push_back(quote(value));
    return fmt::format("[{}]", fmt::join(quoted, ", "));
  }
};

}  // namespace

std::string to_toml(const Value& value) { return std::visit(TomlWriter{}, value); }

}  // namespace nmoe
