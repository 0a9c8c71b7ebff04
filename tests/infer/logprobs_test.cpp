#include "infer/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nmoe {
namespace {

TEST(LogprobsTest, AreThoseOfTheSoftmax) {
  const std::vector<float> logits = {1, 3, -2, 3, 0};
  const double log_sum = log_sum_exp(logits);
  EXPECT_NEAR(log_sum, std::log(std::exp(1) + 2 * std::exp(3) + std::exp(-2) + 1), 1e-12);
  const std::vector<TokenLogprob> top = top_logprobs(logits, log_sum, 3);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].id, 1);  // the lower of equals first
  EXPECT_EQ(top[1].id, 3);
  EXPECT_EQ(top[2].id, 0);
  EXPECT_FLOAT_EQ(top[2].logprob, static_cast<float>(1 - log_sum));
  EXPECT_EQ(top_logprobs(logits, log_sum, 99).size(), 5u);
  EXPECT_TRUE(top_logprobs(logits, log_sum, 0).empty());
}

TEST(LogprobsTest, LogitsOfAnySize) {
  EXPECT_FLOAT_EQ(static_cast<float>(log_sum_exp(std::vector<float>{1e30f, -1e30f})), 1e30f);
  EXPECT_NEAR(log_sum_exp(std::vector<float>{-1000, -1000}), -1000 + std::log(2), 1e-9);
}

}  // namespace
}  // namespace nmoe
