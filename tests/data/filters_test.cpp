#include "data/prep/filters.h"

#include <gtest/gtest.h>

#include <random>

#include "data/test_data.h"

namespace nmoe {
namespace {

using namespace std::string_literals;

TEST(Filters, Characters) {
  EXPECT_EQ(count_chars(""), 0);
  EXPECT_EQ(count_chars("abc\n"), 4);
  EXPECT_EQ(count_chars("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), 3);  // é€😀
  // Each byte of what is no UTF-8: a lone continuation, overlong "/", a surrogate, beyond U+10FFFF, a cut sequence.
  EXPECT_EQ(count_chars("\x80"), 1);
  EXPECT_EQ(count_chars("\xC0\xAF"), 2);
  EXPECT_EQ(count_chars("\xED\xA0\x80"), 3);
  EXPECT_EQ(count_chars("\xF4\x90\x80\x80"), 4);
  EXPECT_EQ(count_chars("a\xE2\x82"), 3);
}

TEST(Filters, SymbolShare) {
  EXPECT_EQ(symbol_share(" \n"), 0.0);
  EXPECT_EQ(symbol_share("plain words 123"), 0.0);
  EXPECT_DOUBLE_EQ(symbol_share("a#b ...\n"), 4.0 / 6);
  EXPECT_DOUBLE_EQ(symbol_share("\xC3\xA9t\xC3\xA9!"), 1.0 / 4);                                      // été!
  EXPECT_DOUBLE_EQ(symbol_share("\xE4\xBD\xA0\xE5\xA5\xBD\xE3\x80\x82"), 1.0 / 3);                    // 你好。
  EXPECT_DOUBLE_EQ(symbol_share("\xD0\x9C\xD0\xB8\xD1\x80 \xE2\x80\x94 \xF0\x9F\x98\x80"), 2.0 / 5);  // Мир — 😀
  EXPECT_DOUBLE_EQ(symbol_share("\xE0\xA4\x95\xE0\xA4\xBF"), 0.0);                                    // कि
  EXPECT_DOUBLE_EQ(symbol_share("ab\xFF\xFE"), 0.5);
  EXPECT_EQ(symbol_share("\xF0\xA0\xAE\xB7\xF0\x9E\xA4\x80"), 0.0);      // 𠮷𞤀: letters beyond U+FFFF
  EXPECT_EQ(symbol_share("\xD9\x85\xDB\x8C\xE2\x80\x8C\xD8\xB1"), 0.0);  // a joiner within a Persian word
}

TEST(Filters, RepeatedLines) {
  EXPECT_EQ(repeated_line_share(""), 0.0);
  EXPECT_EQ(repeated_line_share("a\nb\nc"), 0.0);
  EXPECT_DOUBLE_EQ(repeated_line_share("a\n  a \n\n\nb\na\n"), 2.0 / 4);
}

// By definition: every pair of n-grams compared.
double brute_force_share(const std::vector<std::string>& words, size_t n) {
  std::vector<bool> covered(words.size());
  for (size_t i = 0; i + n <= words.size(); ++i) {
    for (size_t j = 0; j + n <= words.size(); ++j) {
      if (i == j || !std::equal(words.begin() + static_cast<long>(i), words.begin() + static_cast<long>(i + n),
                                words.begin() + static_cast<long>(j))) {
        continue;
      }
      for (size_t k = i; k < i + n; ++k) covered[k] = true;
    }
  }
  size_t repeated = 0;
  size_t total = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    total += words[i].size();
    repeated += covered[i] ? words[i].size() : 0;
  }
  return total == 0 ? 0.0 : static_cast<double>(repeated) / static_cast<double>(total);
}

TEST(Filters, RepeatedNgrams) {
  EXPECT_EQ(repeated_ngram_share("", 2), 0.0);
  EXPECT_EQ(repeated_ngram_share("one", 2), 0.0);
  EXPECT_DOUBLE_EQ(repeated_ngram_share("a b x\ta  b yy", 2), 4.0 / 7);
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> words;
    std::string text = " ";
    for (size_t i = random() % 60; i > 0; --i) {
      words.emplace_back(1 + random() % 4, static_cast<char>('a' + random() % 3));
      text += words.back() + (random() % 5 == 0 ? "\n " : " ");
    }
    for (const size_t n : {2, 3, 5}) {
      EXPECT_DOUBLE_EQ(repeated_ngram_share(text, static_cast<int64_t>(n)), brute_force_share(words, n)) << text;
    }
  }
}

TEST(Filters, TheFirstRuleThatIsBroken) {
  EXPECT_FALSE(check_text("###", {}));
  EXPECT_EQ(check_text("\xC3\xA9", {.min_chars = 2})->reason, "short");
  EXPECT_EQ(check_text("abc", {.max_chars = 2})->detail, "3 characters");
  EXPECT_FALSE(check_text("ab", {.min_chars = 2, .max_chars = 2}));
  EXPECT_EQ(check_text("##a", {.max_symbols = 0.6, .max_repeated_lines = 0.0})->reason, "symbols");
  EXPECT_FALSE(check_text("##a", {.max_symbols = 0.67}));
  EXPECT_EQ(check_text("#\n#", {.max_repeated_lines = 0.4})->reason, "repeated lines");
  EXPECT_EQ(check_text("a b a b", {.max_repeated_ngrams = 0.5, .ngram_words = 2})->reason, "repeated n-grams");
  EXPECT_EQ(check_tokens(3, {.max_tokens = 2})->detail, "3 tokens");
  EXPECT_EQ(check_tokens(0, {.min_tokens = 1})->reason, "short");
  EXPECT_FALSE(check_tokens(1000, {.min_tokens = 1}));
  expect_error(ErrorKind::kUsage, "5 to 4 characters", [] { check_filter_options({.min_chars = 5, .max_chars = 4}); });
  expect_error(ErrorKind::kUsage, "share of 1.5", [] { check_filter_options({.max_symbols = 1.5}); });
}

}  // namespace
}  // namespace nmoe
