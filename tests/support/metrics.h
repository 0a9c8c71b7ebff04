// What a database of metrics has, without its live file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "track/metrics_file.h"

namespace nmoe::test {

struct MetricRow {
  int64_t step = 0;
  std::string tag;  // say "train/loss"
  double value = 0.0;
  int64_t ts_ms = 0;  // when it was measured, milliseconds since 1970 UTC
};

// All rows of one tag of scalars, by step.
inline std::vector<MetricRow> read_series(const fs::path& path, const std::string& tag) {
  std::vector<MetricRow> rows;
  MetricsView(path).series(tag, MetricsView::kNoLimit, [&](int64_t step, double value, int64_t ts_ms) {
    rows.push_back({step, tag, value, ts_ms});
  });
  std::ranges::stable_sort(rows, {}, &MetricRow::step);
  return rows;
}

// The row of the last step of every tag of scalars, by tag.
inline std::vector<MetricRow> last_values(const fs::path& path) {
  std::vector<MetricRow> rows;
  for (MetricsView::Last& last : MetricsView(path).last()) {
    if (!last.is_array) rows.push_back({last.step, std::move(last.tag), last.value, last.ts_ms});
  }
  return rows;
}

}  // namespace nmoe::test
