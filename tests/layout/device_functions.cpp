#include "layout/device_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

namespace nmoe::test {
namespace {

// The text with comments and literals blank, so that every brace that is left is one.
std::string without_comments(std::string text) {
  static const std::regex kBlank(R"re(//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])')re");
  std::string blank = text;
  for (std::sregex_iterator match(text.begin(), text.end(), kBlank), end; match != end; ++match) {
    for (auto i = match->position(); i < match->position() + match->length(); ++i) {
      if (blank[static_cast<size_t>(i)] != '\n') blank[static_cast<size_t>(i)] = ' ';
    }
  }
  return blank;
}

// Where the body of the function whose mark ends at `at` begins; npos: it has none here, or is none.
size_t body_after(const std::string& text, size_t at) {
  int depth = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '(') ++depth;
    if (c == ')') --depth;
    if (depth == 0 && c == '{') return at;
    if (depth == 0 && (c == ';' || c == '#')) break;
  }
  return std::string::npos;
}

size_t end_of_body(const std::string& text, size_t at) {
  int depth = 0;
  for (; at < text.size(); ++at) {
    if (text[at] == '{') ++depth;
    if (text[at] == '}' && --depth == 0) break;
  }
  return at;
}

int64_t lines_between(const std::string& text, size_t begin, size_t end) {
  return std::count(text.begin() + static_cast<std::ptrdiff_t>(begin), text.begin() + static_cast<std::ptrdiff_t>(end),
                    '\n');
}

}  // namespace

std::vector<std::string> long_device_functions(const std::vector<fs::path>& files, int max_lines,
                                               const ReadFile& read) {
  static const std::regex kMark("__global__|__device__|NMOE_HOST_DEVICE");
  std::vector<std::string> messages;
  for (const fs::path& file : files) {
    const std::string text = without_comments(read(file));
    size_t begin_of_last = std::string::npos;  // one function may have several marks
    for (std::sregex_iterator mark(text.begin(), text.end(), kMark), end; mark != end; ++mark) {
      const size_t begin = body_after(text, static_cast<size_t>(mark->position() + mark->length()));
      if (begin == std::string::npos || begin == begin_of_last) continue;
      begin_of_last = begin;
      const int64_t lines = lines_between(text, begin, end_of_body(text, begin)) + 1;
      if (lines <= max_lines) continue;
      messages.push_back(fmt::format("{}:{}: a function for GPUs of {} lines; at most {}", file.string(),
                                     lines_between(text, 0, begin) + 1, lines, max_lines));
    }
  }
  return messages;
}

}  // namespace nmoe::test
