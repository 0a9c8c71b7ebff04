#include "infer/stop_strings.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace nmoe {
namespace {

// What is shown of `text`, and the stop string that ended it, when it comes in pieces of these sizes.
struct Shown {
  std::string text;
  std::string stop;
  bool operator==(const Shown&) const = default;
};
Shown show(const std::vector<std::string>& stops, const std::string& text, const std::vector<size_t>& cuts) {
  StopStrings stream(stops);
  Shown shown;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    shown.text += stream.push(std::string_view(text).substr(begin, cut - begin));
    begin = cut;
  }
  shown.text += stream.push(std::string_view(text).substr(begin));
  shown.text += stream.flush();
  if (stream.found() != nullptr) shown.stop = *stream.found();
  return shown;
}

TEST(StopStringsTest, TheTextEndsBeforeTheFirst) {
  EXPECT_EQ(show({}, "abc", {}), (Shown{"abc", ""}));
  EXPECT_EQ(show({"c"}, "abcabc", {}), (Shown{"ab", "c"}));
  EXPECT_EQ(show({"xyz", "ca"}, "abcabc", {}), (Shown{"ab", "ca"}));
  EXPECT_EQ(show({"cab!"}, "abcabc", {}), (Shown{"abcabc", ""}));
  EXPECT_EQ(show({"abc"}, "abc", {}), (Shown{"", "abc"}));
  EXPECT_EQ(show({"aab"}, "aaaab", {}), (Shown{"aa", "aab"}));     // a beginning inside a beginning
  EXPECT_EQ(show({"abcd", "c"}, "abcd", {}), (Shown{"ab", "c"}));  // ends first
  EXPECT_EQ(show({"c", "bc"}, "abc", {}), (Shown{"a", "bc"}));     // end together: the longest
}

TEST(StopStringsTest, OnlyWhatMayBeAStopIsHeldBack) {
  StopStrings stream({"\n\nQ:", "END"});
  EXPECT_EQ(stream.push("one\n"), "one");
  EXPECT_EQ(stream.push("two\n\n"), "\ntwo");
  EXPECT_EQ(stream.push("Q"), "");
  EXPECT_EQ(stream.push("!E"), "\n\nQ!");
  EXPECT_EQ(stream.push("N"), "");
  EXPECT_EQ(stream.flush(), "EN");
  EXPECT_EQ(stream.found(), nullptr);
}

TEST(StopStringsTest, NothingComesAfterTheEnd) {
  StopStrings stream({"."});
  EXPECT_EQ(stream.push("a.b"), "a");
  EXPECT_EQ(stream.push("c"), "");
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(*stream.found(), ".");
}

// Texts and stop strings of few letters, so that they overlap in all ways: against a search of every beginning of the
// text, for every cut in two and for single bytes.
TEST(StopStringsTest, TheCutDoesNotMatter) {
  const Philox random(1, "stop strings");
  uint64_t draw = 0;
  const auto word = [&](uint64_t longest) {
    std::string text;
    const uint64_t size = 1 + random.bits(draw++) % longest;
    for (uint64_t i = 0; i < size; ++i) text += static_cast<char>('a' + random.bits(draw++) % 2);
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::string> stops = {word(4), word(5), word(6)};
    const std::string text = word(16);
    Shown expected{text, ""};
    for (size_t end = 1; end <= text.size() && expected.stop.empty(); ++end) {
      for (const std::string& stop : stops) {
        if (text.substr(0, end).ends_with(stop) && stop.size() > expected.stop.size()) {
          expected = {text.substr(0, end - stop.size()), stop};
        }
      }
    }
    std::vector<size_t> every;
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      every.push_back(cut);
      EXPECT_EQ(show(stops, text, {cut}), expected) << text;
    }
    EXPECT_EQ(show(stops, text, every), expected) << text;
  }
}

}  // namespace
}  // namespace nmoe
