#include "chat/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <memory>

#include "chat/jinja/budget.h"

namespace nmoe::jinja {
namespace {

constexpr auto kSame = [](char32_t a, char32_t b) { return code_point(a) == code_point(b); };
constexpr char32_t kReplacement = 0xFFFD;

// The same, and what is compared counts: looking for one long text in another may take the product of their lengths.
class CountedSame {
 public:
  bool operator()(char32_t a, char32_t b) {
    if (++*compared_ % kBlock == 0) charge(kBlock / 4);
    return kSame(a, b);
  }

 private:
  static constexpr int64_t kBlock = 4096;
  std::shared_ptr<int64_t> compared_ = std::make_shared<int64_t>(0);  // std::search copies what it is given
};

// A part of a text that is cut.
void add_part(std::vector<Text>& parts, TextView part) {
  charge(kStepUnits + static_cast<int64_t>(part.size()));
  parts.emplace_back(part);
}

bool one_of(char32_t character, const Text* characters) {
  charge(characters == nullptr ? 1 : 1 + static_cast<int64_t>(characters->size() / 4));
  return characters == nullptr ? is_space(character)
                               : std::ranges::find(*characters, code_point(character), code_point) != characters->end();
}

Text map_characters(TextView text, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
  charge(static_cast<int64_t>(text.size()));
  Text result;
  for (const char32_t c : text) {
    const auto mapped = static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(code_point(c))));
    result.push_back(mapped | (c & kFromData));
  }
  return result;
}

}  // namespace

Text decode(std::string_view utf8, char32_t mark) {
  Text text;
  text.reserve(utf8.size());
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(utf8.data());
  for (size_t i = 0; i < utf8.size();) {
    utf8proc_int32_t point = -1;
    const auto length = utf8proc_iterate(bytes + i, static_cast<utf8proc_ssize_t>(utf8.size() - i), &point);
    text.push_back((length > 0 ? static_cast<char32_t>(point) : kReplacement) | mark);
    i += length > 0 ? static_cast<size_t>(length) : 1;
  }
  return text;
}

std::string encode(TextView text) {
  std::string utf8;
  utf8.reserve(text.size());
  for (const char32_t c : text) {
    utf8proc_uint8_t bytes[4];
    const auto point = static_cast<utf8proc_int32_t>(code_point(c));
    const bool valid = utf8proc_codepoint_valid(point) != 0;
    const auto length = utf8proc_encode_char(valid ? point : static_cast<utf8proc_int32_t>(kReplacement), bytes);
    utf8.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
  }
  return utf8;
}

bool is_space(char32_t character) {
  const char32_t c = code_point(character);
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool equal(TextView a, TextView b) {
  charge(static_cast<int64_t>(std::min(a.size(), b.size()) / 8));
  return std::ranges::equal(a, b, kSame);
}

int compare(TextView a, TextView b) {
  charge(static_cast<int64_t>(std::min(a.size(), b.size()) / 8));
  const auto [i, j] = std::ranges::mismatch(a, b, kSame);
  if (i == a.end() || j == b.end()) return (j == b.end() ? 1 : 0) - (i == a.end() ? 1 : 0);
  return code_point(*i) < code_point(*j) ? -1 : 1;
}

size_t find(TextView text, TextView part, size_t begin) {
  if (begin > text.size()) return Text::npos;
  const auto found = std::search(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), part.begin(),
                                 part.end(), CountedSame());
  return found == text.end() && !part.empty() ? Text::npos : static_cast<size_t>(found - text.begin());
}

size_t rfind(TextView text, TextView part) {
  if (part.empty()) return text.size();
  const auto found = std::find_end(text.begin(), text.end(), part.begin(), part.end(), CountedSame());
  return found == text.end() ? Text::npos : static_cast<size_t>(found - text.begin());
}

bool starts_with(TextView text, TextView part) { return equal(text.substr(0, part.size()), part); }

bool ends_with(TextView text, TextView part) {
  return text.size() >= part.size() && equal(text.substr(text.size() - part.size()), part);
}

TextView strip(TextView text, Side side, const Text* characters) {
  if (side != Side::kRight) {
    while (!text.empty() && one_of(text.front(), characters)) text.remove_prefix(1);
  }
  if (side != Side::kLeft) {
    while (!text.empty() && one_of(text.back(), characters)) text.remove_suffix(1);
  }
  return text;
}

std::vector<Text> split(TextView text, const Text* separator, long limit) {
  std::vector<Text> parts;
  if (separator != nullptr) {
    size_t begin = 0;
    for (size_t end = find(text, *separator); end != Text::npos && limit != 0; end = find(text, *separator, begin)) {
      add_part(parts, text.substr(begin, end - begin));
      begin = end + separator->size();
      if (limit > 0) --limit;
    }
    add_part(parts, text.substr(begin));
    return parts;
  }
  text = strip(text, Side::kLeft);
  while (!text.empty() && limit != 0) {
    const auto end = static_cast<size_t>(std::ranges::find_if(text, is_space) - text.begin());
    add_part(parts, text.substr(0, end));
    text = strip(text.substr(end), Side::kLeft);
    if (limit > 0) --limit;
  }
  if (!text.empty()) add_part(parts, text);
  return parts;
}

std::vector<Text> rsplit(TextView text, const Text* separator, long limit) {
  // From the right is from the left of what is reversed.
  const Text reversed(text.rbegin(), text.rend());
  Text reversed_separator;
  if (separator != nullptr) reversed_separator.assign(separator->rbegin(), separator->rend());
  std::vector<Text> parts = split(reversed, separator == nullptr ? nullptr : &reversed_separator, limit);
  for (Text& part : parts) std::ranges::reverse(part);
  std::ranges::reverse(parts);
  return parts;
}

Text replace(TextView text, TextView from, TextView to, long limit) {
  Text result;
  if (from.empty()) {
    for (size_t i = 0; i <= text.size(); ++i) {
      if (limit != 0) result += to;
      if (limit > 0) --limit;
      if (i < text.size()) result += text[i];
    }
    return result;
  }
  size_t begin = 0;
  for (size_t end = find(text, from); end != Text::npos && limit != 0; end = find(text, from, begin)) {
    result += text.substr(begin, end - begin);
    result += to;
    begin = end + from.size();
    if (limit > 0) --limit;
  }
  return result += text.substr(begin);
}

Text upper(TextView text) { return map_characters(text, utf8proc_toupper); }
Text lower(TextView text) { return map_characters(text, utf8proc_tolower); }

}  // namespace nmoe::jinja
