#include "track/tag.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/error.h"

namespace nmoe {
namespace {

bool is_capital(char c) { return c >= 'A' && c <= 'Z'; }

// Of the placeholder that the pattern begins with: all else in tags is lower case.
size_t placeholder_size(std::string_view pattern) {
  return static_cast<size_t>(std::ranges::find_if_not(pattern, is_capital) - pattern.begin());
}

size_t num_digits(std::string_view text) {
  return static_cast<size_t>(std::ranges::find_if_not(text, [](unsigned char c) { return std::isdigit(c) != 0; }) -
                             text.begin());
}

bool match(std::string_view pattern, std::string_view tag, std::vector<std::string_view>& parts) {
  while (!pattern.empty() && placeholder_size(pattern) == 0) {
    if (tag.empty() || pattern.front() != tag.front()) return false;
    pattern.remove_prefix(1);
    tag.remove_prefix(1);
  }
  if (pattern.empty()) return tag.empty();
  const std::string_view placeholder = pattern.substr(0, placeholder_size(pattern));
  const std::string_view rest = pattern.substr(placeholder.size());
  const bool is_number = placeholder.size() == 2;
  size_t most = is_number ? num_digits(tag) : tag.size(), least = 1;
  if (is_number) least = std::max<size_t>(most, placeholder == "NN" ? 1 : 2);  // all digits that are there
  if (placeholder == "SUITE") most = std::min(most, tag.find('/'));
  for (size_t size = most; size >= least; --size) {
    parts.push_back(tag.substr(0, size));
    if (match(rest, tag.substr(size), parts)) return true;
    parts.pop_back();
  }
  return false;
}

}  // namespace

TagPart::TagPart(int64_t number) : text_(fmt::format("{:02}", number)) {}

std::string tag_of(const Metric& metric, std::initializer_list<TagPart> parts) {
  std::string tag;
  const auto* part = parts.begin();
  for (std::string_view pattern = metric.tag; !pattern.empty();) {
    const size_t size = placeholder_size(pattern);
    if (size == 0) {
      tag += pattern.front();
      pattern.remove_prefix(1);
      continue;
    }
    NMOE_CHECK(part != parts.end(), "{} parts of a tag like {}", parts.size(), metric.tag);
    tag += (part++)->text();
    pattern.remove_prefix(size);
  }
  NMOE_CHECK(part == parts.end(), "{} parts of a tag like {}", parts.size(), metric.tag);
  return tag;
}

std::optional<std::vector<std::string_view>> parts_of(const Metric& metric, std::string_view tag) {
  std::vector<std::string_view> parts;
  if (!match(metric.tag, tag, parts)) return std::nullopt;
  return parts;
}

std::optional<int64_t> number_of(const Metric& metric, std::string_view tag) {
  const auto parts = parts_of(metric, tag);
  if (!parts || parts->empty()) return std::nullopt;
  const std::string_view digits = parts->front();
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() ? std::optional(number) : std::nullopt;
}

std::string tag_of_source(const Metric& of_all, std::string_view source) {
  const std::string_view name = name_of(of_all);
  return fmt::format("{}{}/{}", of_all.tag.substr(0, of_all.tag.size() - name.size()), source, name);
}

std::string_view name_of(std::string_view tag) { return tag.substr(tag.rfind('/') + 1); }

}  // namespace nmoe
