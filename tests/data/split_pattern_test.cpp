#include "data/tokenizer/split_pattern.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/unicode.h"

namespace nmoe {
namespace {

// Characters where patterns can go wrong: one or more of each class, and all that patterns name.
const std::vector<std::string>& characters() {
  static const std::vector<std::string> list = {"a",          "b",      "A",      "B",
                                                "s",          "S",      "t",      "T",
                                                "d",          "m",      "l",      "L",
                                                "r",          "e",      "v",      "E",
                                                "'",          "'",      "'",      " ",
                                                " ",          "\n",     "\r",     "\t",
                                                "\v",         "/",      "!",      "-",
                                                "_",          "$",      "1",      "2",
                                                "é",          "É",      "ß",      "ǅ",
                                                "ʰ",          "ª",      "ſ",      "東",
                                                "ア",         "ー",     "\u0301", "\u20DD",
                                                "²",          "Ⅷ",      "٣",      "〇",
                                                "。",         "€",      "😀",      std::string(1, 0),
                                                "\u200B",     "\u00A0", "\u3000", "\u2028",
                                                "\u0085",     "\u180E", "\uE000", "\u0378",
                                                "\U0001E4D0",   // the last: a letter since Unicode 15
                                                "\U00010D4E"};  // a modifier letter since Unicode 16
  return list;
}

std::string random_text(std::mt19937& random) {
  std::string text;
  const size_t kinds = 1 + random() % characters().size();  // few characters: runs of them
  const size_t first = random() % characters().size();
  for (size_t length = 1 + random() % 24; length > 0; --length) {
    text += characters()[(first + random() % kinds) % characters().size()];
  }
  return text;
}

std::optional<Regex::Match> find_first(const Regex& regex, std::string_view text) {
  Regex::Effort effort;
  return regex.find(text, 0, effort);
}

// A match at the start or none: the pattern anchored.
TEST(SplitPattern, FunctionsDoWhatThePatternsSay) {
  for (const KnownPattern& known : known_patterns()) {
    const Regex regex("\\A(?:" + std::string(known.pattern) + ")");
    std::mt19937 random(11);
    for (int round = 0; round < 40'000; ++round) {
      const std::string text = random_text(random);
      const auto expected = find_first(regex, text);
      const auto end = known.match(text.data(), text.data() + text.size()) - text.data();
      ASSERT_EQ(end, expected ? static_cast<std::ptrdiff_t>(expected->end) : 0) << known.name << ": '" << text << "'";
    }
  }
}

TEST(SplitPattern, EveryCodePointInEveryPlaceOfAWord) {
  for (const KnownPattern& known : known_patterns()) {
    const Regex regex("\\A(?:" + std::string(known.pattern) + ")");
    for (char32_t c = 0; c < kNumCodePoints; c += c < 0x3000 ? 1 : 7) {
      if (c >= 0xD800 && c < 0xE000) continue;
      std::string character;
      append_utf8(c, character);
      for (const char* form : {"@", "x@", "@a", " @", "@1", "A@b", "'@"}) {
        std::string text = form;
        text.replace(text.find('@'), 1, character);
        const auto expected = find_first(regex, text);
        const auto end = known.match(text.data(), text.data() + text.size()) - text.data();
        ASSERT_EQ(end, expected ? static_cast<std::ptrdiff_t>(expected->end) : 0)
            << known.name << ": " << form << " with U+" << std::hex << static_cast<uint32_t>(c);
      }
    }
  }
}

TEST(SplitPattern, IsFoundByItsSpelling) {
  for (const KnownPattern& known : known_patterns()) EXPECT_EQ(find_known_pattern(known.pattern), &known);
  EXPECT_EQ(find_known_pattern(".*"), nullptr);
}

// Each word would take time as the text is long: a minute for 3 MB.
TEST(RegexTest, WhatRefersBackIsRefused) {
  for (const char* pattern :
       {R"((a+)\1)", R"((?<x>a)\k<x>)", R"((a)\g{1})", R"((a|(?R)))", R"((a)(?1))", R"((?<x>a)(?&x))"}) {
    EXPECT_THROW(Regex{pattern}, Error) << pattern;
  }
  const Regex digits(R"([\d1-9]+)");  // a class has no groups
  EXPECT_EQ(find_first(digits, "ab12")->begin, 2U);
}

}  // namespace
}  // namespace nmoe
