// Rows in the forms in which they are there: as values, and quantised.
#pragma once

#include "ops/contracts/linear.h"
#include "ops/contracts/quantize.h"
#include "tensor/arena.h"

namespace nmoe {

// One matrix of rows. Operations read or write those forms that are defined; where both are, the quantised ones stand
// for what operations round the values to.
struct Rows {
  OperandRows values;   // [N, width] act, in order or picked by an index; undefined: not as values
  RowCodes quantised;   // of values.source, by rows; undefined: not so
  ColumnCodes columns;  // of the rows, by columns in groups; undefined: not so

  Rows() = default;
  Rows(const Tensor& in_order) : values(in_order) {}
  Rows(const OperandRows& rows) : values(rows) {}
  Rows(const OperandRows& rows, const RowCodes& by_rows, const ColumnCodes& by_columns = {})
      : values(rows), quantised(by_rows), columns(by_columns) {}

  // The values of rows that are in order.
  const Tensor& tensor() const { return values.source; }
  bool has_values() const { return values.source.defined(); }
};

// Memory for rows [N, width] in FP8.
inline RowCodes push_row_codes(Arena& arena, int64_t num_rows, int64_t width) {
  constexpr int64_t n = block_size(OperandFormat::kFp8);
  RowCodes rows;
  rows.values = arena.allocate(DType::kU8, {num_rows, width});
  rows.scales = arena.allocate(DType::kU8, {num_rows, (width + n - 1) / n});
  return rows;
}

// Matrices of rows by columns, one after the other: each of so many rows, in groups of its own. No groups: nobody takes
// them so.
struct ColumnForm {
  int64_t num_matrices = 1, num_rows = 0, num_groups = 0;
};
// Memory for the columns of such rows, of that width, in FP8; undefined if nobody takes them.
inline ColumnCodes push_column_codes(Arena& arena, const ColumnForm& form, int64_t width) {
  if (form.num_groups == 0) return {};
  constexpr int64_t n = block_size(OperandFormat::kFp8);
  const int64_t blocks = form.num_matrices * (form.num_rows / n + form.num_groups);
  ColumnCodes columns;
  columns.values = arena.allocate(DType::kU8, {blocks, width, n});
  columns.scales = arena.allocate(DType::kU8, {blocks, width});
  return columns;
}

}  // namespace nmoe
