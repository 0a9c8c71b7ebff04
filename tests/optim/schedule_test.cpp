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
  EXPECT_EQ(*last, schedule_ends(s).decay);
  EXPECT_GT(rate(s, *last), 0.0);
  EXPECT_EQ(rate(s, *last + 1), 0.0);
  s.unit = ScheduleUnit::kTokens;  // a step begins ahead of the decay's end
  EXPECT_EQ(last_learning_step(s, schedule_ends(s).decay), 1);
  EXPECT_EQ(last_learning_step(s, schedule_ends(s).decay - 1), 2);
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

ScheduleEnds ends_of(Span warmup, Span hold, Span decay, int64_t length) {
  return schedule_ends({.warmup = warmup, .hold = hold, .decay = decay, .length = length});
}

// By hand: ends are rounded, not spans, so that 100 % is the whole of any length.
TEST(Schedule, SharesEndAtTheNearestWholeNumber) {
  const ScheduleEnds thousand = ends_of(Span::share(5), Span::share(50), Span::share(45), 1000);
  EXPECT_EQ(thousand.warmup, 50);
  EXPECT_EQ(thousand.hold, 550);
  EXPECT_EQ(thousand.decay, 1000);
  for (int64_t length = 1; length < 2000; ++length) {
    EXPECT_EQ(ends_of(Span::share(0.7), Span::share(33.3), Span::share(66), length).decay, length);
    EXPECT_EQ(ends_of(Span::share(10), Span::rest(), Span::share(45.5), length).decay, length);
  }
  const ScheduleEnds seven = ends_of(Span::share(50), 0, Span::share(25), 7);
  EXPECT_EQ(seven.warmup, 4);  // 3.5
  EXPECT_EQ(seven.hold, 4);
  EXPECT_EQ(seven.decay, 5);  // 5.25
}

TEST(Schedule, CountsAndSharesGoTogether) {
  const ScheduleEnds ends = ends_of(20, Span::rest(), Span::share(25), 1000);
  EXPECT_EQ(ends.warmup, 20);
  EXPECT_EQ(ends.hold, 750);
  EXPECT_EQ(ends.decay, 1000);
  const ScheduleEnds none_left = ends_of(20, Span::rest(), Span::share(50), 30);
  EXPECT_EQ(none_left.hold, 20);
  EXPECT_EQ(none_left.decay, 35);
}

// A schedule of shares is that of the counts that they make.
TEST(Schedule, RatesOfSharesAreThoseOfTheirCounts) {
  for (const ScheduleUnit unit : {ScheduleUnit::kSteps, ScheduleUnit::kTokens}) {
    const int64_t length = unit == ScheduleUnit::kSteps ? 40 : 40'000;
    ScheduleConfig shares{.unit = unit, .warmup = Span::share(25), .hold = Span::rest(), .decay = Span::share(50)};
    shares.length = length;
    const ScheduleConfig counts{.unit = unit, .warmup = length / 4, .hold = length / 4, .decay = length / 2};
    for (int64_t step = 1; step <= 45; ++step) EXPECT_EQ(rate(shares, step), rate(counts, step)) << step;
    EXPECT_EQ(last_learning_step(shares, 1000), 40);
  }
}

}  // namespace
}  // namespace nmoe
