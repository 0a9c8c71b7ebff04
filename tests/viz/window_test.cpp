// Buckets against what a plain walk over all values says.
#include "viz/window.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "base/rng.h"

namespace nmoe {
namespace {

Series random_series(int64_t count, uint64_t seed) {
  const Philox rng(seed, "series");
  std::vector<int64_t> steps, times;
  std::vector<double> values;
  int64_t step = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = rng.bits(static_cast<uint64_t>(i));
    step += 1 + static_cast<int64_t>(bits % 7 == 0 ? bits % 90 : bits % 2);
    steps.push_back(step);
    values.push_back(bits % 61 == 0 ? std::nan("") : static_cast<double>(bits % 100000) / 100.0 - 300.0);
    times.push_back(1000 * i + static_cast<int64_t>(bits % 900));
  }
  Series series;
  series.assign(steps, values, times);
  return series;
}

const Series kNone;

// Every value in and beside the window is in one bucket, and that has its extremes.
void expect_exact(const Series& series, const AxisOf& axis, const WindowRequest& request) {
  const Window window = cut_window(series, axis, request);
  const double from = request.from.value_or(axis.at(0)), to = request.to.value_or(axis.at(series.size() - 1));
  size_t next = 0, behind = series.size();
  while (next < behind && (axis.at(next) < from || (request.log_x && axis.at(next) <= 0))) ++next;
  while (behind > next && axis.at(behind - 1) > to) --behind;
  if (next > 0 && (!request.log_x || axis.at(next - 1) > 0)) --next;  // one on each side
  if (behind < series.size()) ++behind;
  ASSERT_EQ(window.x.size(), window.buckets.size());
  EXPECT_LE(static_cast<int64_t>(window.x.size()), std::min<int64_t>(request.width, 1600) + 3);
  for (size_t b = 0; b < window.buckets.size(); ++b) {
    const Bucket& bucket = window.buckets[b];
    double min = std::numeric_limits<double>::infinity(), max = -min;
    int64_t bad = 0;
    ASSERT_GT(bucket.count, 0);
    const double first_x = axis.at(next);
    for (int64_t i = 0; i < bucket.count; ++i, ++next) {
      ASSERT_LT(next, behind);
      const double value = series.values()[next];
      if (!std::isfinite(value)) ++bad;
      if (value < min) min = value;
      if (value > max) max = value;
    }
    EXPECT_EQ(bucket.min, min) << b;
    EXPECT_EQ(bucket.max, max) << b;
    EXPECT_EQ(bucket.non_finite, bad) << b;
    EXPECT_EQ(std::bit_cast<uint64_t>(bucket.last), std::bit_cast<uint64_t>(series.values()[next - 1])) << b;
    EXPECT_EQ(window.x[b], axis.at(next - 1)) << b;
    const auto width = static_cast<double>(std::min<int64_t>(request.width, 1600));
    if (request.log_x) {
      EXPECT_LE(window.x[b] / first_x, std::pow(to / from, 1.0 / width) * 1.000001) << b;
    } else {
      EXPECT_LE(window.x[b] - first_x, 2.0 * (to - from) / width) << b;
    }
  }
  EXPECT_EQ(next, behind);
}

TEST(Window, IsWhatAPlainWalkFinds) {
  const Series series = random_series(20000, 1);
  const AxisOf axis(series, Axis::kStep, kNone, 0);
  const auto last = axis.at(series.size() - 1);
  for (const int64_t width : {1, 2, 37, 800, 1600, 100000}) {
    expect_exact(series, axis, {.width = width});
    expect_exact(series, axis, {.from = 0.4 * last, .to = 0.41 * last, .width = width});
    expect_exact(series, axis, {.from = -50.0, .to = 7.0, .width = width});
    expect_exact(series, axis, {.from = 10.0, .to = last, .width = width, .log_x = true});
  }
  const auto count_of = [&](double from, double to) {
    return cut_window(series, axis, {.from = from, .to = to}).buckets.size();
  };
  EXPECT_EQ(count_of(last + 1, last + 2), 1u) << "the value before the window";
  EXPECT_EQ(count_of(5.0, 4.0), 2u) << "a window that ends before it begins has what is beside it";
  EXPECT_TRUE(cut_window(kNone, AxisOf(kNone, Axis::kStep, kNone, 0), {}).buckets.empty());
}

TEST(Window, OnOtherAxes) {
  const Series series = random_series(5000, 2);
  Series tokens;  // recorded at every tenth step of those that are there, from the tenth on
  for (size_t i = 9; i < series.size(); i += 10) {
    tokens.put(series.steps()[i], static_cast<double>(series.steps()[i]) * 512.0, 0);
  }
  const AxisOf by_tokens(series, Axis::kProgress, tokens, 0);
  for (size_t i = 0; i + 10 < series.size(); ++i) {  // as they grow evenly, between them too
    EXPECT_NEAR(by_tokens.at(i), static_cast<double>(series.steps()[i]) * 512.0, 1e-3);
  }
  EXPECT_EQ(by_tokens.at(series.size() - 1), tokens.values().back());
  expect_exact(series, by_tokens, {.width = 300});
  expect_exact(series, by_tokens, {.from = 1e5, .to = 3e5, .width = 300});
  const AxisOf by_time(series, Axis::kTime, kNone, series.times_ms()[0] - 5000);
  EXPECT_EQ(by_time.at(0), 5.0);
  expect_exact(series, by_time, {.from = 100.0, .to = 900.0, .width = 500});
}

TEST(Window, ASpikeAndANanOfOneStepAreSeenAtEveryZoom) {
  constexpr int64_t kCount = 300000, kSpike = 123457, kNan = 123460;
  std::vector<int64_t> steps, times(kCount, 0);
  std::vector<double> values(kCount, 1.0);
  for (int64_t i = 0; i < kCount; ++i) steps.push_back(i);
  values[kSpike] = 50.0;
  values[kNan] = std::nan("");
  Series series;
  series.assign(steps, values, times);
  const AxisOf axis(series, Axis::kStep, kNone, 0);
  for (double half = 200000.0; half > 4.0; half *= 0.7) {
    for (const int64_t width : {1, 320, 1600}) {
      const Window window = cut_window(series, axis, {.from = kSpike - half, .to = kSpike + half, .width = width});
      double most = 0.0;
      int64_t bad = 0;
      for (const Bucket& bucket : window.buckets) {
        most = std::max(most, bucket.max);
        bad += bucket.non_finite;
      }
      EXPECT_EQ(most, 50.0) << half << " " << width;
      EXPECT_EQ(bad, 1) << half << " " << width;
    }
  }
}

// While a run goes on, buckets that are drawn stay: those of the grown curve differ at the end only.
TEST(Window, BucketsStayWhileACurveGrows) {
  Series series = random_series(3000, 3);
  const AxisOf axis(series, Axis::kStep, kNone, 0);
  const Window before = cut_window(series, axis, {.width = 500});
  series.put(series.steps().back() + 3, 1.0, 0);
  const Window after = cut_window(series, axis, {.width = 500});
  ASSERT_GE(after.x.size(), before.x.size());
  for (size_t b = 0; b + 1 < before.x.size(); ++b) EXPECT_EQ(after.x[b], before.x[b]);
}

TEST(Window, ReplyIsBounded) {
  Series series = random_series(200000, 4);
  const auto bytes_of = [&](const AxisOf& axis, const WindowRequest& request) {
    return encode_window(cut_window(series, axis, request)).size();
  };
  const AxisOf by_step(series, Axis::kStep, kNone, 0);
  for (const int64_t width : {int64_t{-5}, int64_t{0}, int64_t{1600}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_LE(bytes_of(by_step, {.width = width}), kMaxWindowBytes);
    EXPECT_LE(bytes_of(by_step, {.from = 1e-300, .to = 1e300, .width = width, .log_x = true}), kMaxWindowBytes);
    EXPECT_LE(bytes_of(by_step, {.from = -1e300, .to = 1e300, .width = width}), kMaxWindowBytes);
  }
  // A clock that jumps: times are in no order.
  std::vector<int64_t> steps(series.steps().begin(), series.steps().end()), times;
  std::vector<double> values(series.values().begin(), series.values().end());
  const Philox rng(5, "times");
  for (size_t i = 0; i < steps.size(); ++i) times.push_back(static_cast<int64_t>(rng.bits(i) % 100000000));
  series.assign(steps, values, times);
  EXPECT_LE(bytes_of(AxisOf(series, Axis::kTime, kNone, 0), {.width = 1600}), kMaxWindowBytes);
}

TEST(Window, Bytes) {
  Series series;
  series.put(3, 1.5, 0);
  series.put(5, std::nan(""), 0);
  const std::string bytes = encode_window(cut_window(series, AxisOf(series, Axis::kStep, kNone, 0), {.width = 100}));
  ASSERT_EQ(bytes.size(), 32u + 2 * 40);
  const auto number = [&]<class Number>(size_t at, Number) {
    Number value;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
  };
  EXPECT_EQ(number(0, uint32_t{}), 1u);
  EXPECT_EQ(number(4, uint32_t{}), 2u);
  EXPECT_EQ(number(8, 0.0), 3.0);
  EXPECT_EQ(number(16, 0.0), 5.0);
  EXPECT_EQ(number(24, int64_t{}), 2);
  EXPECT_EQ(number(32, 0.0), 3.0);                  // x
  EXPECT_EQ(number(32 + 16, 0.0), 1.5);             // min
  EXPECT_TRUE(std::isnan(number(32 + 24, 0.0)));    // of the second
  EXPECT_EQ(number(32 + 48, 0.0), 1.5);             // last
  EXPECT_EQ(number(32 + 64, uint32_t{}), 1u);       // values
  EXPECT_EQ(number(32 + 64 + 12, uint32_t{}), 1u);  // not finite, of the second
}

}  // namespace
}  // namespace nmoe
