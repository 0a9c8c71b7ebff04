#include "data/prep/filters.h"

#include <utf8proc.h>
#include <xxhash.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace nmoe {
namespace {

bool is_ascii_space(uint32_t code) { return code == ' ' || (code >= '\t' && code <= '\r'); }

// White space outside ASCII: Unicode's White_Space property.
bool is_space(uint32_t code) {
  return is_ascii_space(code) || code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

// By Unicode's general category: punctuation, symbols, control characters, private use, unassigned.
bool is_symbol(uint32_t code) {
  if (code < 0x80) {
    const bool letter = (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
    return !letter && !(code >= '0' && code <= '9');
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
      return true;
    default:
      return false;
  }
}

std::string_view trimmed(std::string_view line) {
  const auto space = [](char c) { return is_ascii_space(static_cast<unsigned char>(c)); };
  while (!line.empty() && space(line.front())) line.remove_prefix(1);
  while (!line.empty() && space(line.back())) line.remove_suffix(1);
  return line;
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = std::string_view::npos;
  for_each_char(text, [&](uint32_t code, size_t place, size_t) {
    if (is_space(code)) {
      if (begin != std::string_view::npos) words.push_back(text.substr(begin, place - begin));
      begin = std::string_view::npos;
    } else if (begin == std::string_view::npos) {
      begin = place;
    }
  });
  if (begin != std::string_view::npos) words.push_back(text.substr(begin));
  return words;
}

double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

int64_t count_chars(std::string_view text) {
  int64_t count = 0;
  for_each_char(text, [&](uint32_t, size_t, size_t) { ++count; });
  return count;
}

double symbol_share(std::string_view text) {
  int64_t symbols = 0;
  int64_t chars = 0;
  for_each_char(text, [&](uint32_t code, size_t, size_t) {
    if (is_space(code)) return;
    ++chars;
    symbols += is_symbol(code) ? 1 : 0;
  });
  return ratio(symbols, chars);
}

double repeated_line_share(std::string_view text) {
  std::unordered_set<std::string_view> seen;
  int64_t lines = 0;
  int64_t repeated = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (line.empty()) continue;
    ++lines;
    repeated += seen.insert(line).second ? 0 : 1;
  }
  return ratio(repeated, lines);
}

double repeated_ngram_share(std::string_view text, int64_t n) {
  const std::vector<std::string_view> words = words_of(text);
  const auto length = static_cast<size_t>(n);
  if (words.size() < length) return 0.0;
  std::vector<uint64_t> word_hashes(words.size());
  std::ranges::transform(words, word_hashes.begin(),
                         [](std::string_view w) { return XXH3_64bits(w.data(), w.size()); });
  const auto ngram = [&](size_t first) { return XXH3_64bits(&word_hashes[first], length * sizeof(uint64_t)); };
  const size_t num_ngrams = words.size() - length + 1;
  std::unordered_map<uint64_t, int64_t> counts;
  counts.reserve(num_ngrams);
  for (size_t i = 0; i < num_ngrams; ++i) ++counts[ngram(i)];

  int64_t total = 0;
  int64_t repeated = 0;
  size_t covered = 0;  // words before this one belong to a repeated n-gram, as far as is known
  for (size_t i = 0; i < words.size(); ++i) {
    if (i < num_ngrams && counts[ngram(i)] > 1) covered = i + length;
    const auto bytes = static_cast<int64_t>(words[i].size());
    total += bytes;
    if (i < covered) repeated += bytes;
  }
  return ratio(repeated, total);
}

std::optional<Verdict> check_text(std::string_view text, const FilterOptions& options) {
  if (options.min_chars > 0 || options.max_chars > 0) {
    const int64_t chars = count_chars(text);
    if (chars < options.min_chars) return Verdict{"short", fmt::format("{} characters", chars)};
    if (options.max_chars > 0 && chars > options.max_chars) return Verdict{"long", fmt::format("{} characters", chars)};
  }
  const auto above = [&](std::string_view reason, const std::optional<double>& limit,
                         auto measure) -> std::optional<Verdict> {
    if (!limit) return std::nullopt;
    const double share = measure();
    if (!(share > *limit)) return std::nullopt;
    return Verdict{reason, fmt::format("{:.3f}", share)};
  };
  if (auto verdict = above("symbols", options.max_symbols, [&] { return symbol_share(text); })) return verdict;
  if (auto verdict = above("repeated lines", options.max_repeated_lines, [&] { return repeated_line_share(text); })) {
    return verdict;
  }
  return above("repeated n-grams", options.max_repeated_ngrams,
               [&] { return repeated_ngram_share(text, options.ngram_words); });
}

std::optional<Verdict> check_tokens(int64_t num_tokens, const FilterOptions& options) {
  const bool too_short = num_tokens < options.min_tokens;
  if (!too_short && !(options.max_tokens > 0 && num_tokens > options.max_tokens)) return std::nullopt;
  return Verdict{too_short ? "short" : "long", fmt::format("{} tokens", num_tokens)};
}

void check_filter_options(const FilterOptions& options) {
  const auto check_lengths = [](const char* unit, int64_t least, int64_t most) {
    if (least < 0 || most < 0 || (most > 0 && most < least)) {
      throw usage_error(fmt::format("documents of {} to {} {}", least, most, unit), "choose limits that some can meet");
    }
  };
  check_lengths("characters", options.min_chars, options.max_chars);
  check_lengths("tokens", options.min_tokens, options.max_tokens);
  for (const auto& limit : {options.max_symbols, options.max_repeated_lines, options.max_repeated_ngrams}) {
    if (limit && !(*limit >= 0.0 && *limit <= 1.0)) {
      throw usage_error(fmt::format("a share of {}", *limit), "choose from 0 to 1");
    }
  }
  if (options.ngram_words < 2) {
    throw usage_error(fmt::format("n-grams of {} words", options.ngram_words), "choose at least 2");
  }
}

}  // namespace nmoe
