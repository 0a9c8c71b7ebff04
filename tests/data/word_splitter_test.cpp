#include "data/tokenizer/word_splitter.h"

#include <gtest/gtest.h>

#include "data/test_data.h"
#include "data/tokenizer/split_pattern.h"

namespace nmoe {
namespace {

std::vector<std::string> words_of(std::string_view text) {
  static const WordSplitter splitter(std::vector<Split>{std::string(kSplitPattern)});
  WordCursor cursor(splitter, text);
  std::vector<std::string> words;
  for (std::string_view word; cursor.next(word);) words.emplace_back(word);
  return words;
}

using Words = std::vector<std::string>;

// Worked out by hand from the pattern.
TEST(WordSplitter, SplitsAsThePatternSays) {
  EXPECT_EQ(words_of(""), Words{});
  EXPECT_EQ(words_of("She'll see Mr. Knightley"), (Words{"She", "'ll", " see", " Mr", ".", " Knightley"}));
  EXPECT_EQ(words_of("12345 pounds"), (Words{"123", "45", " pounds"}));
  EXPECT_EQ(words_of("a  b"), (Words{"a", " ", " b"}));
  EXPECT_EQ(words_of("end.\n\n  Next"), (Words{"end", ".\n\n", " ", " Next"}));
  EXPECT_EQ(words_of("--_word_--"), (Words{"--_", "word", "_--"}));
  EXPECT_EQ(words_of("tail   "), (Words{"tail", "   "}));
}

TEST(WordSplitter, KnowsLettersBeyondAscii) {
  EXPECT_EQ(words_of("É naïve 東京, ١٢"), (Words{"É", " naïve", " 東京", ",", " ", "١٢"}));
}

TEST(WordSplitter, BytesThatAreNotUtf8AreWordsOfTheirOwn) {
  EXPECT_EQ(words_of("ab\xFF"
                     "cd"),
            (Words{"ab", "\xFF", "cd"}));
  // A cut sequence, an overlong one, and a surrogate.
  EXPECT_EQ(words_of("x\xE2\x82"), (Words{"x", "\xE2", "\x82"}));
  EXPECT_EQ(words_of("\xC0\xAFy"), (Words{"\xC0", "\xAF", "y"}));
  EXPECT_EQ(words_of("\xED\xA0\x80"), (Words{"\xED", "\xA0", "\x80"}));
}

TEST(WordSplitter, WordsTogetherAreTheText) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::string text = random_bytes(2000, seed);
    std::string joined;
    for (const std::string& word : words_of(text)) {
      EXPECT_FALSE(word.empty());
      joined += word;
    }
    EXPECT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace nmoe
