#include "track/braille_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace nmoe {
namespace {

constexpr int64_t kLabelWidth = 11;  // of the values' axis, with a blank and the line
// Bits of U+2800 by the dot's column and row.
constexpr uint8_t kDots[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};

std::string braille(uint8_t dots) {  // UTF-8 of U+2800 + dots
  return {static_cast<char>(0xe2), static_cast<char>(0xa0 + (dots >> 6)), static_cast<char>(0x80 + (dots & 0x3f))};
}

// Where a value is between the least, 0, and the greatest, 1.
double height_of(const BrailleCurve& curve, double value) {
  if (curve.high <= curve.low) return 0.0;
  const double height = curve.is_log ? std::log(value / curve.low) / std::log(curve.high / curve.low)
                                     : (value - curve.low) / (curve.high - curve.low);
  return std::clamp(height, 0.0, 1.0);
}

int64_t dot_row(const BrailleCurve& curve, double value) {  // from the top
  const int64_t last = 4 * curve.rows - 1;
  return last - static_cast<int64_t>(std::lround(height_of(curve, value) * static_cast<double>(last)));
}

}  // namespace

double BrailleCurve::value_at(int64_t row) const {
  const double height = static_cast<double>(rows - 1 - row) / static_cast<double>(std::max<int64_t>(1, rows - 1));
  return is_log ? low * std::pow(high / low, height) : low + (high - low) * height;
}

int64_t BrailleCurve::row_of(double value) const { return dot_row(*this, value) / 4; }

int64_t BrailleCurve::column_of(int64_t step) const {
  const double place = static_cast<double>(step - first_step) / static_cast<double>(end_step - first_step);
  return std::clamp(static_cast<int64_t>(place * static_cast<double>(columns)), int64_t{0}, columns - 1);
}

BrailleCurve braille_curve(const Series& series, int64_t first_step, int64_t end_step, int64_t columns, int64_t rows,
                           bool log_axis) {
  BrailleCurve curve{.columns = columns,
                     .rows = rows,
                     .first_step = first_step,
                     .end_step = end_step,
                     .cells = std::vector<BrailleCurve::Cell>(static_cast<size_t>(columns * rows)),
                     .not_finite = std::vector<bool>(static_cast<size_t>(columns))};
  const Bucket all = series.range(series.lower_bound(first_step), series.lower_bound(end_step));
  curve.is_empty = all.count == all.non_finite;
  if (!curve.is_empty) {
    curve.is_log = log_axis && all.min > 0.0;
    curve.low = all.min;
    curve.high = all.max > all.min ? all.max : curve.is_log ? 2.0 * all.min : all.min + 1.0;
  }
  const double step_width = static_cast<double>(end_step - first_step) / static_cast<double>(2 * columns);
  const auto mark = [&](int64_t column, int64_t row, bool is_line) {
    BrailleCurve::Cell& cell = curve.cells[static_cast<size_t>(row / 4 * columns + column / 2)];
    cell.dots |= kDots[column % 2][row % 4];
    cell.has_line = cell.has_line || is_line;
  };
  int64_t last_column = 0, last_row = -1;  // where the curve was, to be gone on from
  for (const Bucket& bucket : series.buckets(first_step, end_step, 2 * columns)) {
    const auto column = std::min(static_cast<int64_t>(static_cast<double>(bucket.first_step - first_step) / step_width),
                                 2 * columns - 1);
    if (bucket.non_finite > 0) curve.not_finite[static_cast<size_t>(column / 2)] = true;
    if (bucket.count == bucket.non_finite) {
      last_row = -1;
      continue;
    }
    int64_t top = dot_row(curve, bucket.max), bottom = dot_row(curve, bucket.min);
    // Columns between two logged steps get the line from one to the other.
    const int64_t from = last_row, to = std::clamp(from, top, bottom), gap = column - last_column;
    for (int64_t between = last_column + 1; from >= 0 && between < column; ++between) {
      last_row = to + (from - to) * (column - between) / gap;
      mark(between, last_row, /*is_line=*/true);
    }
    if (last_row >= 0) {
      top = std::min(top, last_row);
      bottom = std::max(bottom, last_row);
    }
    last_row = std::isfinite(bucket.last) ? dot_row(curve, bucket.last) : -1;
    last_column = column;
    for (int64_t row = top; row <= bottom; ++row) mark(column, row, row == last_row);
  }
  return curve;
}

std::string braille_plot(const Series& series, int64_t width, int64_t height) {
  const int64_t columns = std::max<int64_t>(8, width - kLabelWidth), rows = std::max<int64_t>(2, height - 3);
  const Bucket all = series.range(0, series.size());
  if (all.count == all.non_finite) return fmt::format("no finite value in {} steps\n", all.count);
  const BrailleCurve curve = braille_curve(series, all.first_step, all.last_step + 1, columns, rows);
  std::string text;
  for (int64_t row = 0; row < rows; ++row) {
    text +=
        row % 4 == 0 || row == rows - 1 ? fmt::format("{:>9.4g} ┤", curve.value_at(row)) : fmt::format("{:>10}│", "");
    for (int64_t column = 0; column < columns; ++column) {
      text += braille(curve.cells[static_cast<size_t>(row * columns + column)].dots);
    }
    text += '\n';
  }
  if (all.non_finite > 0) {
    std::string marks;
    for (const bool mark : curve.not_finite) marks += mark ? 'x' : ' ';
    text += fmt::format("{:>10}│{}  x: not finite\n", "", marks);
  }
  const std::string last = fmt::format("step {}", all.last_step);
  text += fmt::format("{:>10} {:<{}}{}\n", "", all.first_step,
                      std::max<int64_t>(1, columns - static_cast<int64_t>(last.size())), last);
  return text;
}

}  // namespace nmoe
