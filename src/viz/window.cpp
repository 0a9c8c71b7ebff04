#include "viz/window.h"

#include <algorithm>
#include <cmath>

#include "viz/little_endian.h"

namespace nmoe {
namespace {

constexpr size_t kHeadBytes = 32;
constexpr size_t kBucketBytes = 40;
constexpr size_t kMostBuckets = (kMaxWindowBytes - kHeadBytes) / kBucketBytes;
constexpr int64_t kMaxWidth = 1600;  // leaves room for the values beside the window and cells that it cuts

// Where cells of a window end.
class Cells {
 public:
  Cells(double from, double to, const WindowRequest& request) : log_(request.log_x), from_(from) {
    const auto width = static_cast<double>(std::clamp<int64_t>(request.width, 1, kMaxWidth));
    size_ = (log_ ? std::log(to / from) : to - from) / width;
    if (log_ || !(size_ > 0)) return;
    size_ = std::exp2(std::ceil(std::log2(size_)));
    from_ = std::floor(from / size_) * size_;
  }
  // Of the cell that has `x`.
  double end(double x) const {
    if (!(size_ > 0)) return x;
    const double cell = std::floor((log_ ? std::log(x / from_) : x - from_) / size_) + 1;
    return log_ ? from_ * std::exp(cell * size_) : from_ + cell * size_;
  }

 private:
  bool log_;
  double from_;
  double size_ = 0.0;  // on a logarithmic axis: of the logarithm
};

}  // namespace

double AxisOf::at(size_t i) const {
  const int64_t step = series_.steps()[i];
  if (axis_ == Axis::kStep) return static_cast<double>(step);
  if (axis_ == Axis::kTime) return static_cast<double>(series_.times_ms()[i] - origin_ms_) / 1000.0;
  if (progress_.empty()) return 0.0;
  const size_t behind = progress_.lower_bound(step);
  if (behind == progress_.size()) return progress_.values().back();
  const double to = progress_.values()[behind];
  const auto to_step = static_cast<double>(progress_.steps()[behind]);
  const double from = behind == 0 ? 0.0 : progress_.values()[behind - 1];
  const double from_step = behind == 0 ? 0.0 : static_cast<double>(progress_.steps()[behind - 1]);
  if (to_step <= from_step) return to;
  return from + (to - from) * (static_cast<double>(step) - from_step) / (to_step - from_step);
}

size_t AxisOf::first_from(double x, size_t low) const {
  const size_t size = series_.size();
  size_t high = low;
  for (size_t stride = 1; high < size && at(high) < x; stride *= 2) {
    low = high + 1;
    high += stride;
  }
  high = std::min(high, size);
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    at(middle) < x ? low = middle + 1 : high = middle;
  }
  return low;
}

Window cut_window(const Series& series, const AxisOf& axis, const WindowRequest& request) {
  Window window;
  const size_t size = series.size();
  window.size = static_cast<int64_t>(size);
  if (size == 0) return window;
  window.first = axis.at(0);
  window.last = axis.at(size - 1);
  double from = request.from.value_or(window.first);
  const double to = request.to.value_or(window.last);
  const double above_zero = std::nextafter(0.0, 1.0);
  size_t begin = axis.first_from(request.log_x ? std::max(from, above_zero) : from, 0);
  const size_t end = axis.first_from(std::nextafter(to, std::numeric_limits<double>::infinity()), begin);
  const auto put = [&](size_t first, size_t behind) {
    window.x.push_back(axis.at(behind - 1));
    window.buckets.push_back(series.range(first, behind));
  };
  if (begin > 0 && (!request.log_x || axis.at(begin - 1) > 0)) put(begin - 1, begin);
  if (begin < end && request.log_x && from <= 0) from = axis.at(begin);
  const Cells cells(from, to, request);
  while (begin < end) {
    // Where values are not in order, as times are not that a clock set back has taken, cells may be many.
    const bool room = window.buckets.size() + 2 < kMostBuckets;
    const size_t next = room ? std::clamp(axis.first_from(cells.end(axis.at(begin)), begin), begin + 1, end) : end;
    put(begin, next);
    begin = next;
  }
  if (end < size) put(end, end + 1);
  return window;
}

std::string encode_window(const Window& window) {
  std::string bytes;
  bytes.reserve(kHeadBytes + kBucketBytes * window.buckets.size());
  append_number(bytes, uint32_t{1});
  append_number(bytes, static_cast<uint32_t>(window.buckets.size()));
  append_number(bytes, window.first);
  append_number(bytes, window.last);
  append_number(bytes, window.size);
  for (const double x : window.x) append_number(bytes, x);
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  for (const Bucket& bucket : window.buckets) append_number(bytes, bucket.min <= bucket.max ? bucket.min : kNone);
  for (const Bucket& bucket : window.buckets) append_number(bytes, bucket.min <= bucket.max ? bucket.max : kNone);
  for (const Bucket& bucket : window.buckets) append_number(bytes, bucket.last);
  for (const Bucket& bucket : window.buckets) append_number(bytes, static_cast<uint32_t>(bucket.count));
  for (const Bucket& bucket : window.buckets) append_number(bytes, static_cast<uint32_t>(bucket.non_finite));
  return bytes;
}

}  // namespace nmoe
