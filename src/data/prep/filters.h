// Measures of a document's text that distinguish prose from debris in any language.
//
// Sources: Rae et al., "Scaling Language Models: Methods, Analysis & Insights from Training Gopher" (2021), appendix
// A.1.1: the shares of repeated lines (its threshold: 0.3) and of characters in repeated n-grams (0.15 for n = 5 down
// to 0.10 for n = 10), both from table A1. Its symbol rule counts '#' and ellipses against English words; the share of
// symbols among all characters stands in for it here, for which 0.3 is a usual threshold.
//
// A character is a Unicode code point; each byte that is not valid UTF-8 counts as one. A word is a sequence of
// characters between white space, so in text without spaces (Chinese, Thai) words are as long as lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nmoe {

// All off by default. A share is in [0, 1]; a document is dropped if its share is above the limit.
struct FilterOptions {
  int64_t min_chars = 0;
  int64_t max_chars = 0;   // 0: no limit
  int64_t min_tokens = 0;  // without the end of sequence
  int64_t max_tokens = 0;  // 0: no limit
  std::optional<double> max_symbols = {};
  std::optional<double> max_repeated_lines = {};
  std::optional<double> max_repeated_ngrams = {};
  int64_t ngram_words = 10;  // n of the n-grams
};

int64_t count_chars(std::string_view text);

// Symbols over all characters that are not white space. By Unicode's general categories, symbols are punctuation (P),
// symbols (S, emoji among them), control characters, private use and what is unassigned; so are bytes that are not
// valid UTF-8. 0 for a text of white space.
double symbol_share(std::string_view text);

// Lines that equal an earlier line, over all lines; those of only white space do not count, and white space at either
// end of a line is ignored. 0 without lines.
double repeated_line_share(std::string_view text);

// Characters (bytes, here) of words that belong to an n-gram of `n` words that occurred before or occurs again, over
// those of all words; none is counted twice. 0 with fewer than n words.
double repeated_ngram_share(std::string_view text, int64_t n);

// Why a document is dropped.
struct Verdict {
  std::string_view reason;  // "short", "long", "symbols", "repeated lines", "repeated n-grams"; static
  std::string detail;       // the value that is too high or too low
};

// The first rule that the text violates, in the order of FilterOptions; lengths in tokens are for check_tokens().
std::optional<Verdict> check_text(std::string_view text, const FilterOptions& options);
std::optional<Verdict> check_tokens(int64_t num_tokens, const FilterOptions& options);

// Error (usage) on limits that cannot be met.
void check_filter_options(const FilterOptions& options);

}  // namespace nmoe
