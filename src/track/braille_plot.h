// A curve in a terminal: braille characters, each two dots wide and four high.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "track/series.h"

namespace nmoe {

// Of each column of dots everything from the least to the greatest value of its steps, so that a single spike shows,
// and where the curve is at the end of each.
struct BrailleCurve {
  struct Cell {
    uint8_t dots = 0;       // bits of U+2800
    bool has_line = false;  // the last value of a column of dots is here; otherwise only what is between extremes
  };
  int64_t columns = 0, rows = 0;  // characters
  int64_t first_step = 0, end_step = 0;
  double low = 0.0, high = 1.0;  // the values of the lowest and the highest dots
  bool is_log = false;
  bool is_empty = true;          // no finite value
  std::vector<Cell> cells;       // [rows, columns]
  std::vector<bool> not_finite;  // [columns] whether a value is not

  double value_at(int64_t row) const;     // of a row of characters, from the top
  int64_t row_of(double value) const;     // the inverse; within the rows
  int64_t column_of(int64_t step) const;  // within the columns
};

// Of steps [first_step, end_step); on a logarithmic axis where that was asked for and all values are positive.
BrailleCurve braille_curve(const Series& series, int64_t first_step, int64_t end_step, int64_t columns, int64_t rows,
                           bool log_axis = false);

// `width` by `height` characters with the axes, all lines ended. A line below the curve has an x where values are not
// finite. Of all recorded steps; a line that says so where there is no finite value.
std::string braille_plot(const Series& series, int64_t width, int64_t height);

}  // namespace nmoe
