// One DuckDB file of metrics: metrics/<run>/rank_<r>.duckdb with one table,
//
//   metrics(step BIGINT, tag VARCHAR, value DOUBLE, ts_ms BIGINT)      key (step, tag)
//
// DuckDB lets one process write a file or several read it, never both. Each call here therefore
// opens the file, does one thing and closes it. Within the process calls take turns (DuckDB's file
// locks do not tell threads apart).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"

namespace nmoe {

struct MetricRow {
  int64_t step = 0;
  std::string tag;  // say "train/loss"
  double value = 0.0;
  int64_t ts_ms = 0;  // when it was measured, milliseconds since 1970 UTC
};

// In one transaction, in a file created when missing: deletes the rows of steps beyond `rewind_to`,
// if given, then adds `rows`, whose keys differ, in place of rows of the same keys. When another
// process has the file open, does nothing and returns DuckDB's word for who. Error (runtime) when
// the file cannot be written or is something else.
[[nodiscard]] std::optional<std::string> try_write_metrics(const fs::path& path, std::span<const MetricRow> rows,
                                                           std::optional<int64_t> rewind_to = std::nullopt);

// All rows of one tag, by step. The readers wait for a writer, which is soon done; Error (runtime)
// when it is not, or when there is no such file of metrics.
std::vector<MetricRow> read_series(const fs::path& path, const std::string& tag);

// The row of the last step of every tag, by tag.
std::vector<MetricRow> last_values(const fs::path& path);

}  // namespace nmoe
