#include "base/utf8.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"

namespace nmoe {
namespace {

// Unicode 15, table 3-7.
TEST(Utf8, KnowsWhatIsNone) {
  for (const char* text : {"", "a", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xEF\xBF\xBD", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(is_utf8(text)) << text;
    EXPECT_EQ(as_utf8(text), text);
  }
  for (const char* text : {"\x80", "\xC0\xAF", "\xC1\xBF", "\xC2", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                           "\xF4\x90\x80\x80", "\xF5", "\xFF", "a\xC3", "\xE2\x82"}) {
    EXPECT_FALSE(is_utf8(text)) << text;
    EXPECT_TRUE(is_utf8(as_utf8(text))) << text;
  }
  EXPECT_EQ(as_utf8("a\xFF\xC3\xA4\xE2\x82"), "a\uFFFD\u00E4\uFFFD\uFFFD");
}

// A name of a file may be anything, and a JSON text of it is one still.
TEST(Utf8, JsonOfAnyBytesIsJson) {
  const nlohmann::ordered_json json = {{"name", "a\xFF\xC3\xA4"}};
  EXPECT_EQ(json_text(json), "{\"name\":\"a\uFFFD\u00E4\"}");
  EXPECT_EQ(json_text(json, 1), "{\n \"name\": \"a\uFFFD\u00E4\"\n}");
}

// What steers a terminal is escaped, and the value is the same.
TEST(Utf8, PrintedJsonIsAscii) {
  const std::string text = "\u009B2J\x7F\x1B[2J\u202E\u2066\u00E4\U0001F600";
  const std::string printed = printed_json(nlohmann::ordered_json(text));
  for (const char c : printed) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << printed;
  EXPECT_EQ(nlohmann::json::parse(printed), text);
}

}  // namespace
}  // namespace nmoe
