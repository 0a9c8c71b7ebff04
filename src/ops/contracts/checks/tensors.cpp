#include "ops/contracts/checks/tensors.h"

#include "base/error.h"

namespace nmoe {

void check_codes(const RowCodes& codes, const Shape& rows) {
  if (!codes.defined()) return;
  constexpr int64_t n = block_size(OperandFormat::kFp8);
  NMOE_CHECK(rows.rank() == 2 && is(codes.values, DType::kU8, rows) &&
                 is(codes.scales, DType::kU8, {rows[0], (rows[1] + n - 1) / n}),
             "codes {} with scales {} of rows {}", codes.values.shape(), codes.scales.shape(), rows);
}

void check_codes(const ColumnCodes& columns, int64_t num_rows, int64_t width, int64_t num_groups) {
  if (!columns.defined()) return;
  constexpr int64_t n = block_size(OperandFormat::kFp8);
  const int64_t blocks = num_rows / n + num_groups;
  NMOE_CHECK(is(columns.values, DType::kU8, {blocks, width, n}) && is(columns.scales, DType::kU8, {blocks, width}),
             "codes of columns {} with scales {} of {} rows of {} in {} groups", columns.values.shape(),
             columns.scales.shape(), num_rows, width, num_groups);
}

}  // namespace nmoe
