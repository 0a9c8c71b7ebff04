// Splits against Hugging Face's tokenizers, as scripts/split_vectors.mjs wrote them down (which says what the file
// holds).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "data/test_data.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/word_splitter.h"

namespace nmoe {
namespace {

const nlohmann::json& split_vectors() {
  static const auto file =
      nlohmann::json::parse(read_file(fs::path(NMOE_SOURCE_DIR) / "tests/data/fixtures/tokenizers/splits.json"));
  return file;
}

std::vector<std::string> pieces_of(const Split& split, std::string_view text) {
  const WordSplitter splitter(std::span(&split, 1));
  WordCursor cursor(splitter, text);
  std::vector<std::string> pieces;
  for (std::string_view piece; cursor.next(piece);) pieces.emplace_back(piece);
  return pieces;
}

TEST(SplitVectors, SamePieces) {
  ASSERT_GT(split_vectors()["splits"].size(), 500U);
  for (const auto& entry : split_vectors()["splits"]) {
    const auto behavior = behavior_of_name(entry["behavior"].get<std::string>());
    ASSERT_TRUE(behavior);
    const Split split(entry["pattern"], *behavior, entry["invert"]);
    for (size_t i = 0; i < entry["texts"].size(); ++i) {
      const auto text = entry["texts"][i].get<std::string>();
      EXPECT_EQ(pieces_of(split, text), entry["pieces"][i].get<std::vector<std::string>>())
          << split.pattern << " " << entry["behavior"] << " " << split.invert << ": '" << text << "'";
    }
  }
}

// Every code point but surrogates.
TEST(SplitVectors, SameClasses) {
  std::string all;
  for (char32_t c = 0; c < kNumCodePoints; ++c) {
    if (c < 0xD800 || c > 0xDFFF) append_utf8(c, all);
  }
  for (const auto& entry : split_vectors()["classes"]) {
    std::vector<uint32_t> found;
    for (const std::string& piece : pieces_of(Split(entry["pattern"], SplitBehavior::kRemoved, true), all)) {
      found.push_back(decode_utf8(piece.data()).code_point);
    }
    EXPECT_EQ(found.size(), entry["count"]) << entry["pattern"];
    const std::string_view bytes(reinterpret_cast<const char*>(found.data()), found.size() * sizeof(uint32_t));
    EXPECT_EQ(sha256_hex(bytes).substr(0, 16), entry["sha256"].get<std::string>()) << entry["pattern"];
  }
}

TEST(SplitVectors, WhatTheLibraryRefusesIsRefused) {
  ASSERT_GT(split_vectors()["refused"].size(), 8U);
  for (const auto& pattern : split_vectors()["refused"]) {
    EXPECT_THROW(Regex{pattern.get<std::string>()}, Error) << pattern;
  }
}

// What would mean something else to PCRE2, or to another version of Oniguruma, and is translated by nothing here.
TEST(SplitVectors, WhatHasNoSureMeaningIsRefusedByName) {
  for (const auto& [pattern, reason] :
       std::vector<std::pair<std::string, std::string>>{{R"(\X)", "\\X"},
                                                        {R"(\K)", "\\K"},
                                                        {R"(\y)", "\\y"},
                                                        {R"(\xE3)", "\\xE3"},
                                                        {R"(\p{IsHan})", "IsHan"},
                                                        {R"([[:letter:]])", "[:letter:]"},
                                                        {R"((?x) a)", "(?x"},
                                                        {R"((?~ab))", "(?..."},
                                                        {R"((*FAIL))", "(*...)"},
                                                        {R"(a{1001})", "more than 1000"},
                                                        {R"(a{2}?)", "{n}?"},
                                                        {R"((?i)ss)", "ß"},
                                                        {R"((?i:[ß]))", "ß"},
                                                        {R"((?i:[[:^upper:]]))", "under (?i)"},
                                                        {R"((a)\1)", "refers back"}}) {
    expect_error(ErrorKind::kRuntime, reason, [&] { Regex{pattern}; });
  }
}

// A second for 100 kB at most, whatever pattern and text: these would take minutes.
TEST(SplitVectors, NoPatternGoesThroughATextForever) {
  // With a "b", without which PCRE2 sees at once that some of them match nowhere.
  const std::string as = std::string(100'000, 'a') + "cb";
  for (const char* pattern : {"a+b", "(a|aa)+b", "(?:a+)+b", "a*a*b", "(?=a*b)", "[^x]*xb"}) {
    const Split split(pattern);
    expect_error(ErrorKind::kRuntime, "gives up at byte 0", [&] { pieces_of(split, as); });
  }
  // Work that grows with the text is no reason.
  EXPECT_EQ(pieces_of(Split(R"(\s+$)"), std::string(4000, ' ') + "x").size(), 1U);
  EXPECT_EQ(pieces_of(Split(R"((?=(\d{3})+(?!\d)))"), std::string(6001, '1')).size(), 2001U);
  EXPECT_EQ(pieces_of(Split("(?:ab)+"), std::string(1 << 20, ' ')).size(), 1U);
}

TEST(SplitVectors, SplitsFollowEachOther) {
  const std::vector<Split> splits = {
      {R"(\s+)", SplitBehavior::kRemoved}, {R"((?=(\d{3})+(?!\d)))"}, {"-", SplitBehavior::kMergedWithPrevious}};
  const WordSplitter splitter(splits);
  WordCursor cursor(splitter, " ab-1234-\xFF  567");
  std::vector<std::string> words;
  for (std::string_view word; cursor.next(word);) words.emplace_back(word);
  EXPECT_EQ(words, (std::vector<std::string>{"ab-", "1", "234-", "\xFF", "567"}));
}

}  // namespace
}  // namespace nmoe
