// A part of a curve as a page draws it: some 1,600 buckets at most, whatever they stand for.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "track/series.h"

namespace nmoe {

enum class Axis {
  kStep,
  kProgress,  // what another series has at the same step: tokens seen, FLOPs
  kTime,      // seconds since an origin
};

// Where the values of a series are on an axis. All series live longer.
class AxisOf {
 public:
  // `progress` is what kProgress goes by, `origin_ms` where kTime begins.
  AxisOf(const Series& series, Axis axis, const Series& progress, int64_t origin_ms)
      : series_(series), axis_(axis), progress_(progress), origin_ms_(origin_ms) {}

  // Of value `i`. Between the steps of `progress` on a straight line; before its first step on one from 0, at step 0.
  double at(size_t i) const;
  // The first value from `low` on that is not before `x`, given that values come in order. O(log of the distance).
  size_t first_from(double x, size_t low) const;

 private:
  const Series& series_;
  Axis axis_;
  const Series& progress_;
  int64_t origin_ms_;
};

struct WindowRequest {
  std::optional<double> from, to;  // on the axis, both taken in; without them all
  int64_t width = 800;             // how many buckets, or half as many
  bool log_x = false;              // buckets of equal ratio instead of equal width
};

struct Window {
  double first = std::numeric_limits<double>::quiet_NaN();  // on the axis, of all values
  double last = std::numeric_limits<double>::quiet_NaN();
  int64_t size = 0;             // of all values
  std::vector<double> x;        // of each bucket's last value
  std::vector<Bucket> buckets;  // before and behind the window one of a single value, so that lines go on
};

// Unless log_x is set, widths of buckets are powers of two, and buckets begin at multiples of their width: while a
// curve grows, those that are drawn stay what they were.
Window cut_window(const Series& series, const AxisOf& axis, const WindowRequest& request);

// Little-endian columns, at most 64 KiB:
//   u32 format = 1    u32 count    f64 first    f64 last    i64 size
//   f64 x[count]    f64 min[count]    f64 max[count]    f64 last[count]    u32 values[count]    u32 not_finite[count]
// min and max are NaN where no value is finite.
inline constexpr size_t kMaxWindowBytes = size_t{64} << 10;
std::string encode_window(const Window& window);

}  // namespace nmoe
