// The rows of tokens that a router has assigned to experts, as these experts get them.
//
// E experts, R the capacity of a layer's experts in rows, D the width of a row that travels.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "ops/rows.h"

namespace nmoe {

// Rows grouped by expert. Their number depends on the routing and is known only to the device: the shape of a tensor of
// them gives the capacity, and rows beyond count() are undefined.
struct RaggedRows {
  int64_t begin = 0, end = 0;       // their range in the layer's R rows
  int64_t part = 0, num_parts = 1;  // which of the equal parts of these they are
  Tensor offsets;                   // [E + 1] i32: expert e owns rows begin + [offsets[e], offsets[e + 1])

  // These rows of a tensor that has all R.
  Tensor of(const Tensor& rows) const { return rows.rows(begin, end); }
  // Rows that are picked are one part.
  OperandRows of(const OperandRows& rows) const {
    if (!rows.index.defined()) return of(rows.source);
    NMOE_CHECK(begin == 0 && end == rows.num_rows(), "rows {} to {} of {} that are picked", begin, end,
               rows.num_rows());
    return rows;
  }
  RowCodes of(const RowCodes& codes) const {
    if (!codes.defined()) return {};
    return {.values = of(codes.values), .scales = of(codes.scales)};
  }
  ColumnCodes of(const ColumnCodes& codes) const {
    if (!codes.defined()) return {};
    const int64_t blocks = codes.values.dim(0) / num_parts, first = part * blocks;
    return {.values = codes.values.rows(first, first + blocks), .scales = codes.scales.rows(first, first + blocks)};
  }
  Rows of(const Rows& rows) const {
    const bool picked = rows.values.index.defined();  // then the quantised ones are of their whole source
    return {rows.has_values() ? of(rows.values) : OperandRows(), picked ? rows.quantised : of(rows.quantised),
            of(rows.columns)};
  }
  // [1] i32: the number of rows.
  Tensor count() const { return offsets.rows(offsets.dim(0) - 1, offsets.dim(0)); }
};

// The rows that a layer's experts have to process: R rows in one or several parts, processed one after the other so
// that the result of a part does not depend on the others. If the routing may give more than R rows, the rest is the
// overflow, in chunks of equal capacity, most of which are usually empty.
struct RoutedRows {
  int64_t capacity = 0;  // R
  std::vector<RaggedRows> parts;
  std::vector<RaggedRows> overflow;

  // Capacity of a chunk in rows, at most R; 0: no overflow.
  int64_t chunk_capacity() const { return overflow.empty() ? 0 : overflow.front().end; }
};

}  // namespace nmoe
