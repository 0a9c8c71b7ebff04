#include "infer/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/log_sum.h"

namespace nmoe {
namespace {

TEST(LogprobsTest, AreThoseOfTheSoftmax) {
  const std::vector<float> logits = {1, 3, -2, 3, 0};
  const LogSum log_sum = test::log_sum(logits);
  EXPECT_FLOAT_EQ(log_sum.log_z(), static_cast<float>(std::log(std::exp(1) + 2 * std::exp(3) + std::exp(-2) + 1)));
  const std::vector<TokenLogprob> top = top_logprobs(logits, log_sum, 3);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].id, 1);  // the lower of equals first
  EXPECT_EQ(top[1].id, 3);
  EXPECT_EQ(top[2].id, 0);
  EXPECT_EQ(top[2].logprob, log_sum.logprob(1));
  EXPECT_NEAR(top[2].logprob, 1 - log_sum.log_z(), 1e-6);
  EXPECT_EQ(top_logprobs(logits, log_sum, 99).size(), 5u);
  EXPECT_TRUE(top_logprobs(logits, log_sum, 0).empty());
}

TEST(LogprobsTest, LogitsOfAnySize) {
  EXPECT_FLOAT_EQ(test::log_sum(std::vector<float>{1e30f, -1e30f}).log_z(), 1e30f);
  EXPECT_FLOAT_EQ(test::log_sum(std::vector<float>{-1000, -1000}).log_z(), static_cast<float>(-1000 + std::log(2)));
  EXPECT_FLOAT_EQ(test::log_sum(std::vector<float>{-1000, -1000}).logprob(-1000), static_cast<float>(-std::log(2)));
}

}  // namespace
}  // namespace nmoe
