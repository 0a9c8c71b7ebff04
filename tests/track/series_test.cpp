#include "track/series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace nmoe {
namespace {

// The same by looking at every value.
Bucket by_hand(const Series& series, int64_t first, int64_t end) {
  Bucket bucket;
  for (size_t i = 0; i < series.size(); ++i) {
    const int64_t step = series.steps()[i];
    const double value = series.values()[i];
    if (step < first || step >= end) continue;
    if (bucket.count++ == 0) bucket.first_step = step;
    bucket.last_step = step;
    bucket.last = value;
    if (!std::isfinite(value)) {
      ++bucket.non_finite;
      continue;
    }
    bucket.min = std::min(bucket.min, value);
    bucket.max = std::max(bucket.max, value);
  }
  return bucket;
}

void expect_same(const Bucket& a, const Bucket& b) {
  EXPECT_EQ(a.count, b.count);
  if (a.count == 0) return;
  EXPECT_EQ(a.first_step, b.first_step);
  EXPECT_EQ(a.last_step, b.last_step);
  EXPECT_EQ(a.min, b.min);
  EXPECT_EQ(a.max, b.max);
  EXPECT_TRUE(a.last == b.last || (std::isnan(a.last) && std::isnan(b.last))) << a.last << " and " << b.last;
  EXPECT_EQ(a.non_finite, b.non_finite);
}

TEST(SeriesTest, ASpikeOfOneStepIsVisibleAtEveryZoom) {
  constexpr int64_t kSteps = 200'000, kSpike = 77'777, kBad = 150'001;
  Series series;
  for (int64_t step = 1; step <= kSteps; ++step) {
    series.put(step, step == kSpike ? 50.0 : step == kBad ? std::nan("") : 2.0, step);
  }
  for (int64_t width = kSteps; width >= 1; width = width * 2 / 5) {
    for (const int64_t count : {1, 3, 80, 1000}) {
      const int64_t begin = std::max<int64_t>(1, kSpike - width / 3);
      const auto buckets = series.buckets(begin, begin + width, count);
      EXPECT_LE(int64_t(buckets.size()), count);
      EXPECT_EQ(std::ranges::max(buckets, {}, &Bucket::max).max, 50.0) << width << " steps in " << count;
      EXPECT_EQ(std::ranges::count_if(buckets, [](const Bucket& bucket) { return bucket.max == 50.0; }), 1);
      int64_t bad = 0, covered = 0;
      for (const Bucket& bucket : buckets) {
        bad += bucket.non_finite;
        covered += bucket.count;
      }
      EXPECT_EQ(bad, begin <= kBad && kBad < begin + width ? 1 : 0);
      EXPECT_EQ(covered, std::min(begin + width, kSteps + 1) - begin) << "each step is in one bucket";
    }
  }
}

// Values that come in any order, again, and are taken back, against a look at each.
TEST(SeriesTest, AsByHand) {
  std::mt19937 random(7);
  const auto below = [&](int64_t limit) { return int64_t(random() % uint64_t(limit)); };
  for (int round = 0; round < 20; ++round) {
    Series series;
    int64_t step = 0;
    for (int i = 0; i < 3000; ++i) {
      const int64_t kind = below(1000);
      if (kind == 0) series.rewind(step = below(step + 1));
      const double value = kind < 20 ? std::nan("") : kind < 25 ? INFINITY : double(below(1000));
      if (kind > 990 && !series.empty()) {
        series.put(below(step + 1), value, i);  // of an earlier step, recorded or not
      } else {
        series.put(step += 1 + below(3), value, i);
      }
    }
    ASSERT_TRUE(std::ranges::adjacent_find(series.steps(), std::greater_equal<>()) == series.steps().end());
    for (int i = 0; i < 50; ++i) {
      const size_t begin = size_t(below(int64_t(series.size()))),
                   end = begin + size_t(below(int64_t(series.size() - begin)));
      if (begin == end) continue;
      expect_same(series.range(begin, end), by_hand(series, series.steps()[begin], series.steps()[end - 1] + 1));
    }
    Series at_once;
    at_once.assign({series.steps().begin(), series.steps().end()}, {series.values().begin(), series.values().end()},
                   {series.times_ms().begin(), series.times_ms().end()});
    expect_same(at_once.range(0, at_once.size()), series.range(0, series.size()));
  }
}

TEST(SeriesTest, ColumnsInNoOrder) {
  Series series;
  series.assign({3, 1, 2, 1}, {30, 10, 20, 11}, {3, 1, 2, 4});
  EXPECT_TRUE(std::ranges::equal(series.steps(), std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(std::ranges::equal(series.values(), std::vector<double>{11, 20, 30})) << "the later of two counts";
  series.rewind(0);
  EXPECT_TRUE(series.empty());
  EXPECT_TRUE(series.buckets(0, 10, 5).empty());
  EXPECT_EQ(series.range(0, 0).count, 0);
}

TEST(SeriesTest, Arrays) {
  ArraySeries series;
  series.put(10, {1, 2}, 0);
  series.put(20, {3, 4}, 0);
  series.put(20, {5, 6}, 0);
  EXPECT_EQ(series.at(9), nullptr);
  EXPECT_EQ(*series.at(19), (std::vector<float>{1, 2}));
  EXPECT_EQ(*series.at(1000), (std::vector<float>{5, 6}));
  series.rewind(15);
  EXPECT_EQ(series.size(), 1u);
}

}  // namespace
}  // namespace nmoe
