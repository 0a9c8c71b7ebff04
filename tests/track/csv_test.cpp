#include "track/csv.h"

#include <gtest/gtest.h>

namespace nmoe {
namespace {

TEST(Csv, FieldsAreTextAndNoFormulas) {
  EXPECT_EQ(csv_field("train/loss"), "train/loss");
  EXPECT_EQ(csv_field("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_field("a\"b\nc"), "\"a\"\"b\nc\"");
  EXPECT_EQ(csv_field("=HYPERLINK(\"x\")"), "\"'=HYPERLINK(\"\"x\"\")\"");
  for (const char* text : {"+1", "-1", "@x", "\tx", "=1"}) EXPECT_EQ(csv_field(text), std::string("'") + text);
  EXPECT_EQ(csv_field("\r=1"), "\"'\r=1\"");
  EXPECT_EQ(csv_field(""), "");
}

}  // namespace
}  // namespace nmoe
