#include "eval/answer_number.h"

#include <gtest/gtest.h>

namespace nmoe {
namespace {

using Number = std::optional<std::string>;

TEST(AnswerNumber, StrictIsBehindTheFirstMark) {
  EXPECT_EQ(strict_number("9 + 9 = <<9+9=18>>18\n#### 18"), "18");
  EXPECT_EQ(strict_number("#### 1 and #### 2"), "1");
  EXPECT_EQ(strict_number("#### none, #### -1,234.50."), "-1234.50");
  EXPECT_EQ(strict_number("#### 7, then"), "7");
  EXPECT_EQ(strict_number("#### $7"), Number());
  EXPECT_EQ(strict_number("####7"), Number());
  EXPECT_EQ(strict_number("#### -"), Number());
  EXPECT_EQ(strict_number(""), Number());
}

TEST(AnswerNumber, FlexibleIsTheLast) {
  EXPECT_EQ(flexible_number("2 apples and 3 pears, so 5."), "5");
  EXPECT_EQ(flexible_number("it costs $1,200.00 then"), "1200.00");
  EXPECT_EQ(flexible_number("from 10 to -4"), "-4");
  EXPECT_EQ(flexible_number("10-4"), "-4");
  EXPECT_EQ(flexible_number("7 $ , - ."), "7");
  EXPECT_EQ(flexible_number("7 and so on ..."), "..");  // as the pattern has it: no number is one of two characters
  EXPECT_EQ(flexible_number("none"), Number());
}

TEST(AnswerNumber, DataSetsMarkTheirsOrEndWithIt) {
  EXPECT_EQ(expected_number("5 - 2 = 3\n#### 3 of 9"), "3");
  EXPECT_EQ(expected_number("2 and 4"), "4");
  EXPECT_EQ(expected_number("four"), Number());
}

}  // namespace
}  // namespace nmoe
