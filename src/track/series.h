// One tag's values by step, in memory, with what is needed to draw any window of them: extremes are kept, nothing is
// averaged, so a spike or a NaN of a single step is in whatever bucket that step falls into.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace nmoe {

// What a range of steps has. Values that are not finite are counted and take no part in min and max.
struct Bucket {
  int64_t first_step = 0;  // of those recorded
  int64_t last_step = 0;
  double min = std::numeric_limits<double>::infinity();  // > max where no value is finite
  double max = -std::numeric_limits<double>::infinity();
  double last = 0.0;  // as recorded
  int64_t count = 0;
  int64_t non_finite = 0;  // of these
};

// Columns, and over them a pyramid: each node of a level stands for kFanOut of the level below.
class Series {
 public:
  static constexpr size_t kFanOut = 32;

  // In place of an earlier value of the step. Cheap at the end, O(values behind it) elsewhere.
  void put(int64_t step, double value, int64_t ts_ms);
  // All at once, in no order; of equal steps the later one counts.
  void assign(std::vector<int64_t> steps, std::vector<double> values, std::vector<int64_t> times_ms);
  void rewind(int64_t step);  // forgets what comes after

  size_t size() const { return steps_.size(); }
  bool empty() const { return steps_.empty(); }
  std::span<const int64_t> steps() const { return steps_; }  // rising
  std::span<const double> values() const { return values_; }
  std::span<const int64_t> times_ms() const { return times_; }

  size_t lower_bound(int64_t step) const;  // index of the first value at or behind `step`

  // Of values [begin, end), in O(log); count 0 of none.
  Bucket range(size_t begin, size_t end) const;
  // Steps [first_step, end_step) in at most `count` parts of equal width, in order; those without values are left out.
  std::vector<Bucket> buckets(int64_t first_step, int64_t end_step, int64_t count) const;

 private:
  struct Node {
    double min = std::numeric_limits<double>::infinity();
    double max = -std::numeric_limits<double>::infinity();
    int64_t non_finite = 0;

    void add(double value);
    void add(const Node& other);
  };
  void build_from(size_t index);  // the nodes that stand for value `index` and later ones

  std::vector<int64_t> steps_;
  std::vector<double> values_;
  std::vector<int64_t> times_;
  std::vector<std::vector<Node>> levels_;  // levels_[0] over the values
};

// The same for arrays: one row a step.
class ArraySeries {
 public:
  void put(int64_t step, std::vector<float> row, int64_t ts_ms);
  void assign(std::vector<int64_t> steps, std::vector<std::vector<float>> rows, std::vector<int64_t> times_ms);
  void rewind(int64_t step);

  size_t size() const { return steps_.size(); }
  std::span<const int64_t> steps() const { return steps_; }  // rising
  std::span<const std::vector<float>> rows() const { return rows_; }
  std::span<const int64_t> times_ms() const { return times_; }
  // Of the last step at or before `step`; null before the first.
  const std::vector<float>* at(int64_t step) const;

 private:
  std::vector<int64_t> steps_;
  std::vector<std::vector<float>> rows_;
  std::vector<int64_t> times_;
};

}  // namespace nmoe
