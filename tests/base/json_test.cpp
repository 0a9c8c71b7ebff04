#include "base/json.h"

#include <gtest/gtest.h>

#include <ctime>

#include "support/errors.h"

namespace nmoe {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using test::contains;

std::string nested(int levels) {
  return std::string(static_cast<size_t>(levels), '[') + std::string(static_cast<size_t>(levels), ']');
}

std::string reason(std::string_view text, int64_t max_values = 1000000) {
  try {
    parse_json<ordered_json>(text, max_values);
  } catch (const JsonError& error) {
    return error.what();
  }
  return "";
}

TEST(JsonTest, ReadsWhatIsWithinBounds) {
  EXPECT_EQ(parse_json<json>(R"({"a": [1, {"b": null}]})")["a"][1]["b"], nullptr);
  EXPECT_EQ(parse_json<json>(nested(kMaxJsonDepth)).size(), 1U);
  EXPECT_EQ(try_parse_json<json>("[1, 2]").size(), 2U);
  EXPECT_EQ(reason("[1, 2, [3]]", 5), "");
}

TEST(JsonTest, RefusesTheRest) {
  EXPECT_TRUE(contains(reason("{"), "line 1"));
  EXPECT_TRUE(contains(reason(""), "parse error"));
  EXPECT_TRUE(contains(reason("[1e999]"), "number"));
  EXPECT_TRUE(contains(reason(nested(kMaxJsonDepth + 1)), "levels"));
  EXPECT_TRUE(contains(reason(std::string(10000000, '[')), "levels"));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += R"({"a":)";
  EXPECT_TRUE(contains(reason(objects), "levels"));
  EXPECT_TRUE(contains(reason("[1, 2, [3]]", 4), "more than 4 values"));
  EXPECT_TRUE(try_parse_json<json>(nested(kMaxJsonDepth + 1)).is_discarded());
  EXPECT_TRUE(try_parse_json<ordered_json>("nul").is_discarded());
}

TEST(JsonTest, WholeNumbers) {
  EXPECT_EQ(integer_of<int64_t>(json(-7)), -7);
  EXPECT_EQ(integer_of<uint64_t>(parse_json<json>("18446744073709551615")), UINT64_MAX);
  EXPECT_EQ(integers_of<int32_t>(json({1, 2147483647})), (std::vector<int32_t>{1, INT32_MAX}));
  for (const char* other :
       {"-9223372036854775809", "9223372036854775808", "1e300", "1.5", "1.0", "\"1\"", "null", "[1]"}) {
    EXPECT_THROW(integer_of<int64_t>(parse_json<json>(other)), JsonError) << other;
  }
  EXPECT_THROW(integer_of<uint64_t>(json(-1)), JsonError);
  EXPECT_THROW(integers_of<int32_t>(json({2147483648})), JsonError);
  EXPECT_THROW(integers_of<int32_t>(json(1)), JsonError);
}

// Their digits would be lost: a double holds 16 of them.
TEST(JsonTest, IntegersOfMoreThan64Bits) {
  for (const char* text :
       {"18446744073709551616", "[1, -9223372036854775809]", R"({"n": 123456789012345678901234567890})"}) {
    EXPECT_TRUE(contains(reason(text), "more than 64 bits")) << text;
  }
  EXPECT_EQ(reason(R"([18446744073709551615, -9223372036854775808, 1e30, 123456789012345678901234567890.5])"), "");
  EXPECT_EQ(reason(R"(["18446744073709551616"])"), "");
}

// Of several members of one name the last one counts.
TEST(JsonTest, MembersOfOneName) {
  EXPECT_EQ(parse_json<json>(R"({"a": 1, "b": 2, "a": 3})"), (json{{"a", 3}, {"b", 2}}));
  EXPECT_EQ(parse_json<ordered_json>(R"({"a": 1, "b": 2, "a": 3})").dump(), R"({"a":3,"b":2})");
}

// 300,000 objects in a list, and in an object: a parser that looked through all of them for each took minutes.
TEST(JsonTest, ManyObjects) {
  std::string list = "[", object = "{";
  for (int i = 0; i < 300'000; ++i) {
    list += i > 0 ? ",{}" : "{}";
    object += fmt::format("{}\"{}\":{{}}", i > 0 ? "," : "", i);
  }
  const std::clock_t start = std::clock();
  EXPECT_EQ(parse_json<json>(list + "]").size(), 300'000U);
  EXPECT_EQ(parse_json<json>(object + "}").size(), 300'000U);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 10.0);
}

// An ordered object looks through all its members for each: 100,000 of them would take minutes.
TEST(JsonTest, MembersOfOrderedObjects) {
  std::string members = "{";
  for (int64_t i = 0; i < kMaxOrderedMembers; ++i) members += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":{}";
  EXPECT_EQ(parse_json<ordered_json>("[" + members + "}," + members + "}]").size(), 2U);
  EXPECT_TRUE(contains(reason(members + ",\"x\":1}"), "members"));
  EXPECT_EQ(parse_json<json>(members + ",\"x\":1}").size(), static_cast<size_t>(kMaxOrderedMembers) + 1);
}

}  // namespace
}  // namespace nmoe
