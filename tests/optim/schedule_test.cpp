#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nmoe {
namespace {

ScheduleConfig schedule(DecayShape shape) {
  return {.unit = ScheduleUnit::kSteps, .warmup = 10, .hold = 5, .decay = 20, .shape = shape, .floor = 0.1};
}

double rate(const ScheduleConfig& s, int64_t step, double peak = 1.0) {
  return scheduled_rate(s, peak, {.steps = step, .tokens = 1000 * step});
}

TEST(Schedule, WarmsUpHoldsDecaysAndStaysAtTheFloor) {
  const ScheduleConfig s = schedule(DecayShape::kLinear);
  EXPECT_DOUBLE_EQ(rate(s, 1), 0.1);
  EXPECT_DOUBLE_EQ(rate(s, 5), 0.5);
  EXPECT_DOUBLE_EQ(rate(s, 10), 1.0);
  EXPECT_DOUBLE_EQ(rate(s, 15), 1.0);
  EXPECT_DOUBLE_EQ(rate(s, 25), 0.1 + 0.9 * 0.5);
  EXPECT_DOUBLE_EQ(rate(s, 35), 0.1);
  EXPECT_DOUBLE_EQ(rate(s, 1000), 0.1);
}

TEST(Schedule, ShapesAgreeAtTheEndsAndDifferBetween) {
  for (const DecayShape shape : {DecayShape::kCosine, DecayShape::kLinear, DecayShape::kSqrt}) {
    EXPECT_DOUBLE_EQ(rate(schedule(shape), 15), 1.0);
    EXPECT_NEAR(rate(schedule(shape), 35), 0.1, 1e-15);
  }
  EXPECT_NEAR(rate(schedule(DecayShape::kCosine), 20), 0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI / 4)), 1e-15);
  EXPECT_NEAR(rate(schedule(DecayShape::kSqrt), 20), 0.1 + 0.9 * 0.5, 1e-15);
}

TEST(Schedule, CountsTokensWhenAsked) {
  ScheduleConfig s = schedule(DecayShape::kLinear);
  s.unit = ScheduleUnit::kTokens;
  s.warmup = 10'000;
  EXPECT_DOUBLE_EQ(rate(s, 4), 0.4);
}

TEST(Schedule, KnowsItsLastLearningStep) {
  ScheduleConfig s = schedule(DecayShape::kLinear);
  s.floor = 0.0;
  const auto last = last_learning_step(s, 100);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(*last, schedule_span(s));
  EXPECT_GT(rate(s, *last - 1), 0.0);
  EXPECT_EQ(rate(s, *last), 0.0);
  s.unit = ScheduleUnit::kTokens;  // a step ends in it, or behind it
  EXPECT_EQ(last_learning_step(s, schedule_span(s)), 1);
  EXPECT_EQ(last_learning_step(s, schedule_span(s) - 1), 2);
  s.floor = 0.1;
  EXPECT_EQ(last_learning_step(s, 100), std::nullopt);
  s.floor = 0.0;
  s.decay = 0;
  EXPECT_EQ(last_learning_step(s, 100), std::nullopt);
}

TEST(Schedule, FloorIsAbsoluteAndNeverRaisesARate) {
  EXPECT_DOUBLE_EQ(rate(schedule(DecayShape::kCosine), 35, 0.05), 0.05);
  ScheduleConfig s = schedule(DecayShape::kCosine);
  s.decay = 0;
  EXPECT_DOUBLE_EQ(rate(s, 1'000'000), 1.0);
}

}  // namespace
}  // namespace nmoe
