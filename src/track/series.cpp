#include "track/series.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace nmoe {
namespace {

size_t first_at(std::span<const int64_t> steps, int64_t step) {
  return static_cast<size_t>(std::ranges::lower_bound(steps, step) - steps.begin());
}

// Three columns in the order of steps, of equal steps the last.
template <class Value>
void sort_columns(std::vector<int64_t>& steps, std::vector<Value>& values, std::vector<int64_t>& times) {
  NMOE_CHECK(steps.size() == values.size() && steps.size() == times.size(), "columns of {}, {} and {}", steps.size(),
             values.size(), times.size());
  if (std::ranges::adjacent_find(steps, std::greater_equal<>()) == steps.end()) return;
  std::vector<size_t> order(steps.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return steps[i]; });
  std::vector<int64_t> sorted_steps, sorted_times;
  std::vector<Value> sorted_values;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i + 1 < order.size() && steps[order[i + 1]] == steps[order[i]]) continue;
    sorted_steps.push_back(steps[order[i]]);
    sorted_values.push_back(std::move(values[order[i]]));
    sorted_times.push_back(times[order[i]]);
  }
  steps = std::move(sorted_steps);
  values = std::move(sorted_values);
  times = std::move(sorted_times);
}

// Where `step` is or belongs; makes room for it.
template <class Value>
size_t place_of(int64_t step, std::vector<int64_t>& steps, std::vector<Value>& values, std::vector<int64_t>& times) {
  const size_t index = steps.empty() || step > steps.back() ? steps.size() : first_at(steps, step);
  if (index == steps.size() || steps[index] != step) {
    const auto at = static_cast<std::ptrdiff_t>(index);
    steps.insert(steps.begin() + at, step);
    values.insert(values.begin() + at, Value{});
    times.insert(times.begin() + at, 0);
  }
  return index;
}

}  // namespace

void Series::Node::add(double value) {
  if (!std::isfinite(value)) {
    ++non_finite;
    return;
  }
  min = std::min(min, value);
  max = std::max(max, value);
}

void Series::Node::add(const Node& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  non_finite += other.non_finite;
}

void Series::put(int64_t step, double value, int64_t ts_ms) {
  const size_t before = size();
  const size_t index = place_of(step, steps_, values_, times_);
  values_[index] = value;
  times_[index] = ts_ms;
  if (index < before) return build_from(index);
  // At the end: each level's last node takes it in, or a new one begins.
  size_t nodes = index;
  for (size_t level = 0; level == 0 || nodes > 0; ++level) {
    nodes /= kFanOut;
    if (level == levels_.size()) {
      build_from(0);
      return;
    }
    levels_[level].resize(nodes + 1);
    levels_[level][nodes].add(value);
  }
}

void Series::assign(std::vector<int64_t> steps, std::vector<double> values, std::vector<int64_t> times_ms) {
  sort_columns(steps, values, times_ms);
  steps_ = std::move(steps);
  values_ = std::move(values);
  times_ = std::move(times_ms);
  build_from(0);
}

void Series::rewind(int64_t step) {
  const size_t kept = first_at(steps_, step + 1);
  if (kept == size()) return;
  steps_.resize(kept);
  values_.resize(kept);
  times_.resize(kept);
  build_from(kept);
}

size_t Series::lower_bound(int64_t step) const { return first_at(steps_, step); }

void Series::build_from(size_t index) {
  size_t below = values_.size();  // nodes or values
  for (size_t level = 0; level == 0 || below > 1; ++level) {
    if (level == levels_.size()) levels_.emplace_back();
    std::vector<Node>& nodes = levels_[level];
    index = std::min(index / kFanOut, nodes.size());
    nodes.resize(index);
    nodes.resize((below + kFanOut - 1) / kFanOut);
    for (size_t i = index; i < nodes.size(); ++i) {
      for (size_t child = i * kFanOut; child < std::min(below, (i + 1) * kFanOut); ++child) {
        level == 0 ? nodes[i].add(values_[child]) : nodes[i].add(levels_[level - 1][child]);
      }
    }
    below = nodes.size();
    if (below <= 1) levels_.resize(level + 1);
  }
}

Bucket Series::range(size_t begin, size_t end) const {
  Bucket bucket;
  if (begin >= end) return bucket;
  bucket.first_step = steps_[begin];
  bucket.last_step = steps_[end - 1];
  bucket.last = values_[end - 1];
  bucket.count = static_cast<int64_t>(end - begin);
  Node sum;
  const auto take = [&](size_t level, size_t i) { level == 0 ? sum.add(values_[i]) : sum.add(levels_[level - 1][i]); };
  // What does not fill a node of the level above is taken here, at both ends.
  for (size_t level = 0; begin < end; ++level, begin /= kFanOut, end /= kFanOut) {
    const bool top = level == levels_.size();
    for (; begin < end && (top || begin % kFanOut != 0); ++begin) take(level, begin);
    for (; begin < end && end % kFanOut != 0; --end) take(level, end - 1);
  }
  bucket.min = sum.min;
  bucket.max = sum.max;
  bucket.non_finite = sum.non_finite;
  return bucket;
}

std::vector<Bucket> Series::buckets(int64_t first_step, int64_t end_step, int64_t count) const {
  std::vector<Bucket> found;
  if (count < 1 || end_step <= first_step) return found;
  const auto width = static_cast<double>(end_step - first_step) / static_cast<double>(count);
  for (size_t begin = lower_bound(first_step); begin < size() && steps_[begin] < end_step;) {
    const auto part = static_cast<int64_t>(static_cast<double>(steps_[begin] - first_step) / width);
    const auto next = first_step + static_cast<int64_t>(std::ceil(width * static_cast<double>(part + 1)));
    const size_t end = lower_bound(std::min(std::max(next, steps_[begin] + 1), end_step));
    found.push_back(range(begin, end));
    begin = end;
  }
  return found;
}

void ArraySeries::put(int64_t step, std::vector<float> row, int64_t ts_ms) {
  const size_t index = place_of(step, steps_, rows_, times_);
  rows_[index] = std::move(row);
  times_[index] = ts_ms;
}

void ArraySeries::assign(std::vector<int64_t> steps, std::vector<std::vector<float>> rows,
                         std::vector<int64_t> times_ms) {
  sort_columns(steps, rows, times_ms);
  steps_ = std::move(steps);
  rows_ = std::move(rows);
  times_ = std::move(times_ms);
}

void ArraySeries::rewind(int64_t step) {
  const size_t kept = first_at(steps_, step + 1);
  steps_.resize(kept);
  rows_.resize(kept);
  times_.resize(kept);
}

const std::vector<float>* ArraySeries::at(int64_t step) const {
  const size_t behind = first_at(steps_, step + 1);
  return behind == 0 ? nullptr : &rows_[behind - 1];
}

}  // namespace nmoe
