#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nmoe {
namespace {

ScheduleConfig schedule(DecayShape shape) {
  return {.unit = ScheduleUnit::kSteps, .warmup = 10, .hold = 5, .decay = 20, .shape = shape, .floor = 0.1};
}

double rate(const ScheduleConfig& s, int64_t step, double peak = 1.0) {
  return scheduled_rate(s, peak, {.steps = step, .tokens = 1000 * step}, 1000);
}

TEST(Schedule, WarmsUpHoldsDecaysAndStaysAtTheFloor) {
  const ScheduleConfig s = schedule(DecayShape::kLinear);
  EXPECT_DOUBLE_EQ(rate(s, 1), 0.1);
  EXPECT_DOUBLE_EQ(rate(s, 5), 0.5);
  EXPECT_DOUBLE_EQ(rate(s, 10), 1.0);
  EXPECT_DOUBLE_EQ(rate(s, 15), 1.0);
  EXPECT_DOUBLE_EQ(rate(s, 16), 1.0);  // nothing of the decay is done before it
  EXPECT_DOUBLE_EQ(rate(s, 26), 0.1 + 0.9 * 0.5);
  EXPECT_DOUBLE_EQ(rate(s, 35), 0.1 + 0.9 * 0.05);
  EXPECT_DOUBLE_EQ(rate(s, 36), 0.1);
  EXPECT_DOUBLE_EQ(rate(s, 1000), 0.1);
}

TEST(Schedule, ShapesAgreeAtTheEndsAndDifferBetween) {
  for (const DecayShape shape : {DecayShape::kCosine, DecayShape::kLinear, DecayShape::kSqrt}) {
    EXPECT_DOUBLE_EQ(rate(schedule(shape), 16), 1.0);
    EXPECT_NEAR(rate(schedule(shape), 36), 0.1, 1e-15);
  }
  EXPECT_NEAR(rate(schedule(DecayShape::kCosine), 21), 0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI / 4)), 1e-15);
  EXPECT_NEAR(rate(schedule(DecayShape::kSqrt), 21), 0.1 + 0.9 * 0.5, 1e-15);
}

TEST(Schedule, CountsTokensWhenAsked) {
  ScheduleConfig s = schedule(DecayShape::kLinear);
  s.unit = ScheduleUnit::kTokens;
  s.warmup = 10'000;
  EXPECT_DOUBLE_EQ(rate(s, 4), 0.4);
  s.hold = 10'500;
  s.decay = 4'000;
  EXPECT_DOUBLE_EQ(rate(s, 21), 1.0);  // half of it is in the decay, but it begins ahead of it
  EXPECT_DOUBLE_EQ(rate(s, 22), 0.1 + 0.9 * (1 - 500.0 / 4'000));
  EXPECT_DOUBLE_EQ(rate(s, 25), 0.1 + 0.9 * (1 - 3'500.0 / 4'000));
  EXPECT_DOUBLE_EQ(rate(s, 26), 0.1);
}

// Every scheduled step teaches something: neither the first nor the last has a rate of 0, however short the spans.
TEST(Schedule, NoScheduledStepHasARateOfZero) {
  for (const DecayShape shape : {DecayShape::kCosine, DecayShape::kLinear, DecayShape::kSqrt}) {
    for (const int64_t warmup : {0, 1, 3}) {
      for (const int64_t hold : {0, 2}) {
        for (const int64_t decay : {1, 2, 5}) {
          for (const ScheduleUnit unit : {ScheduleUnit::kSteps, ScheduleUnit::kTokens}) {
            const int64_t length = unit == ScheduleUnit::kSteps ? 1 : 1000;
            const ScheduleConfig s = {.unit = unit,
                                      .warmup = warmup * length,
                                      .hold = hold * length,
                                      .decay = decay * length,
                                      .shape = shape,
                                      .floor = 0.0};
            const int64_t steps = warmup + hold + decay;
            EXPECT_EQ(last_learning_step(s, 1000), steps);
            for (int64_t step = 1; step <= steps; ++step) EXPECT_GT(rate(s, step), 0.0) << step << " of " << steps;
            EXPECT_EQ(rate(s, steps + 1), 0.0);
          }
        }
      }
    }
  }
}

TEST(Schedule, KnowsItsLastLearningStep) {
  ScheduleConfig s = schedule(DecayShape::kLinear);
  s.floor = 0.0;
  const auto last = last_learning_step(s, 100);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(*last, schedule_span(s));
  EXPECT_GT(rate(s, *last), 0.0);
  EXPECT_EQ(rate(s, *last + 1), 0.0);
  s.unit = ScheduleUnit::kTokens;  // a step begins ahead of the decay's end
  EXPECT_EQ(last_learning_step(s, schedule_span(s)), 1);
  EXPECT_EQ(last_learning_step(s, schedule_span(s) - 1), 2);
  s.floor = 0.1;
  EXPECT_EQ(last_learning_step(s, 100), std::nullopt);
  s.floor = 0.0;
  s.decay = 0;
  EXPECT_EQ(last_learning_step(s, 100), std::nullopt);
}

TEST(Schedule, FloorIsAbsoluteAndNeverRaisesARate) {
  EXPECT_DOUBLE_EQ(rate(schedule(DecayShape::kCosine), 36, 0.05), 0.05);
  ScheduleConfig s = schedule(DecayShape::kCosine);
  s.decay = 0;
  EXPECT_DOUBLE_EQ(rate(s, 1'000'000), 1.0);
}

}  // namespace
}  // namespace nmoe
