#include "infer/utf8_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nmoe {
namespace {

// One, two, three and four bytes a character.
constexpr std::string_view kText = "aß€😀é\n한z";

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

// What a stream returns for each of these pieces, and at the end.
std::vector<std::string> push_all(const std::vector<std::string>& pieces) {
  Utf8Stream stream;
  std::vector<std::string> shown;
  for (const std::string& piece : pieces) shown.push_back(stream.push(piece));
  shown.push_back(stream.flush());
  return shown;
}

std::string join(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

using Strings = std::vector<std::string>;

// A piece of valid text that ends before a continuation byte ends inside a character.
void expect_whole_characters(const std::vector<std::string>& shown) {
  size_t end = 0;
  for (const std::string& piece : shown) {
    end += piece.size();
    EXPECT_TRUE(end == kText.size() || !is_continuation(kText[end])) << "after byte " << end;
  }
  EXPECT_EQ(join(shown), kText);
}

TEST(Utf8StreamTest, AllSplitsInThree) {
  for (size_t first = 0; first <= kText.size(); ++first) {
    for (size_t second = first; second <= kText.size(); ++second) {
      const std::vector<std::string> shown =
          push_all({std::string(kText.substr(0, first)), std::string(kText.substr(first, second - first)),
                    std::string(kText.substr(second))});
      expect_whole_characters(shown);
      EXPECT_EQ(shown.back(), "");  // the text ends with a whole character
    }
  }
}

TEST(Utf8StreamTest, EveryByteAlone) {
  std::vector<std::string> bytes;
  for (const char byte : kText) bytes.emplace_back(1, byte);
  const std::vector<std::string> shown = push_all(bytes);
  expect_whole_characters(shown);
  // Nothing waits longer than for its own last byte.
  for (size_t i = 0; i < kText.size(); ++i) {
    const bool last_of_character = i + 1 == kText.size() || !is_continuation(kText[i + 1]);
    EXPECT_EQ(!shown[i].empty(), last_of_character) << i;
  }
}

TEST(Utf8StreamTest, AnUnfinishedCharacterIsLeftToTheEnd) {
  EXPECT_EQ(push_all({"ab\xE2\x82"}), (Strings{"ab", "\xE2\x82"}));
  EXPECT_EQ(push_all({"\xF0", "\x9F", "\x98"}), (Strings{"", "", "", "\xF0\x9F\x98"}));
  EXPECT_EQ(push_all({}), (Strings{""}));
  Utf8Stream stream;
  stream.push("\xC3");
  EXPECT_EQ(stream.flush(), "\xC3");
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push("a"), "a");
}

TEST(Utf8StreamTest, BytesThatAreNoUtf8PassThrough) {
  // Continuations without a lead, a lead without continuations, bytes that never occur.
  EXPECT_EQ(push_all({"\x80\xBF\x80\x80\x80"}), (Strings{"\x80\xBF\x80\x80\x80", ""}));
  EXPECT_EQ(push_all({"\xC3", "a"}), (Strings{"",
                                              "\xC3"
                                              "a",
                                              ""}));
  EXPECT_EQ(push_all({"\xFF", "\xFE", "\xF8"}), (Strings{"\xFF", "\xFE", "\xF8", ""}));
  // Any bytes at all come out as they went in.
  std::string bytes;
  for (unsigned i = 0; i < 2000; ++i) bytes += static_cast<char>((i * 167U + i * i * 31U) >> 3U);
  for (size_t size = 1; size < 8; ++size) {
    std::vector<std::string> pieces;
    for (size_t i = 0; i < bytes.size(); i += size) pieces.push_back(bytes.substr(i, size));
    EXPECT_EQ(join(push_all(pieces)), bytes);
  }
}

}  // namespace
}  // namespace nmoe
