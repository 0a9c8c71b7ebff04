#include "eval/answer_number.h"

#include <algorithm>

namespace nmoe {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_part(char c) { return is_digit(c) || c == '.' || c == ','; }

std::string normalised(std::string_view number) {
  std::string text(number);
  std::erase_if(text, [](char c) { return c == ',' || c == '$'; });
  if (text.ends_with('.')) text.pop_back();
  return text;
}

}  // namespace

std::optional<std::string> strict_number(std::string_view answer) {
  constexpr std::string_view kMark = "#### ";
  for (size_t at = answer.find(kMark); at != std::string_view::npos; at = answer.find(kMark, at + 1)) {
    const size_t begin = at + kMark.size();
    size_t end = begin + (answer.substr(begin).starts_with('-') ? 1 : 0);
    const size_t digits = end;
    while (end < answer.size() && is_part(answer[end])) ++end;
    if (end > digits) return normalised(answer.substr(begin, end - begin));
  }
  return std::nullopt;
}

std::optional<std::string> flexible_number(std::string_view answer) {
  std::optional<std::string> last;
  for (size_t begin = 0; begin < answer.size();) {
    const size_t first = begin + (answer[begin] == '-' ? 1 : 0);
    size_t end = first;
    while (end < answer.size() && (is_part(answer[end]) || answer[end] == '$')) ++end;
    if (end - first >= 2 || (end - first == 1 && is_digit(answer[first]))) {
      last = normalised(answer.substr(begin, end - begin));
      begin = end;
    } else {
      ++begin;
    }
  }
  return last;
}

std::optional<std::string> expected_number(std::string_view answer) {
  const std::optional<std::string> marked = strict_number(answer);
  return marked ? marked : flexible_number(answer);
}

}  // namespace nmoe
