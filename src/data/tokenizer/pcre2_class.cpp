#include "data/tokenizer/pcre2_class.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/pcre2_code.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/unicode_properties.h"

namespace nmoe {
namespace {

constexpr CodePointSet::Range kSurrogates{0xD800, 0xDFFF};  // not in UTF-8: PCRE2 takes no class with them

// Categories that a set may have whole, the largest first.
constexpr std::string_view kUnits[] = {"L",  "M",  "N",  "P",  "S",  "Z",  "Lu", "Ll", "Lt", "Lm", "Lo", "Mn",
                                       "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                       "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
// Under (?i), PCRE2 takes each of these for all three.
bool depends_on_case(std::string_view unit) { return unit == "Lu" || unit == "Ll" || unit == "Lt"; }

// What PCRE2, which may know another Unicode, takes for the category.
CodePointSet find_in_pcre2(std::string_view category) {
  std::string all;
  for (char32_t c = 0; c < kNumCodePoints; ++c) {
    if (c < kSurrogates.first || c > kSurrogates.last) append_utf8(c, all);
  }
  const Pcre2Code code = pcre2_compile_utf(fmt::format("\\p{{{}}}+", category));
  const Pcre2MatchData match(pcre2_match_data_create(1, nullptr));
  std::vector<CodePointSet::Range> ranges;
  for (size_t place = 0;
       pcre2_match(code.get(), pcre2_text(all), all.size(), place, PCRE2_NO_UTF_CHECK, match.get(), nullptr) >= 0;) {
    const auto [begin, end] = pcre2_span(match.get());
    size_t last = end - 1;
    while ((static_cast<unsigned char>(all[last]) & 0xC0) == 0x80) --last;
    const CodePointSet::Range range{decode_utf8(&all[begin]).code_point, decode_utf8(&all[last]).code_point};
    // What is left out between them may be in it.
    if (range.first < kSurrogates.first && range.last > kSurrogates.last) {
      ranges.push_back({range.first, kSurrogates.first - 1});
      ranges.push_back({kSurrogates.last + 1, range.last});
    } else {
      ranges.push_back(range);
    }
    place = end;
  }
  return CodePointSet(std::move(ranges));
}

// Found once for the program.
const CodePointSet& in_pcre2(std::string_view category) {
  static std::mutex mutex;
  static std::map<std::string_view, CodePointSet> sets;
  const std::lock_guard lock(mutex);
  auto found = sets.find(category);
  if (found == sets.end()) found = sets.emplace(category, find_in_pcre2(category)).first;
  return found->second;
}

std::string code_point(char32_t c) { return fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(c)); }

}  // namespace

std::string pcre2_class(const CodePointSet& set, bool negated, bool ignore_case) {
  CodePointSet rest = set - CodePointSet({kSurrogates});
  if (rest.empty()) return negated ? "(?s:.)" : "(?!)";
  const CodePointSet wanted = rest;
  std::string members;
  for (const std::string_view unit : kUnits) {
    const CodePointSet& ours = *find_property(unit);
    if ((ignore_case && depends_on_case(unit)) || !wanted.includes(ours) || (rest & ours).empty()) continue;
    const CodePointSet& theirs = in_pcre2(unit);
    if (!wanted.includes(theirs)) continue;
    members += fmt::format("\\p{{{}}}", unit);
    rest = rest - theirs;
  }
  for (const auto& [first, last] : rest.ranges()) {
    members += first == last ? code_point(first) : fmt::format("{}-{}", code_point(first), code_point(last));
  }
  return fmt::format("[{}{}]", negated ? "^" : "", members);
}

std::string pcre2_character(char32_t c) {
  const bool word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c >= 0x80;
  if (!word) return code_point(c);
  std::string text;
  append_utf8(c, text);
  return text;
}

}  // namespace nmoe
