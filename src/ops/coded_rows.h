// Rows that may have a quantised copy beside them.
#pragma once

#include "ops/contracts/quantize.h"
#include "tensor/arena.h"

namespace nmoe {

// Rows [N, D], and their codes in FP8 if the operation that made the rows wrote them.
struct CodedRows {
  Tensor rows;
  RowCodes codes;

  CodedRows(Tensor of, RowCodes made = {}) : rows(of), codes(made) {}
};

// Memory for codes of rows [N, width].
inline RowCodes push_row_codes(Arena& arena, int64_t num_rows, int64_t width) {
  constexpr int64_t n = block_size(OperandFormat::kFp8);
  RowCodes rows;
  rows.values = arena.allocate(DType::kU8, {num_rows, width});
  rows.scales = arena.allocate(DType::kU8, {num_rows, (width + n - 1) / n});
  return rows;
}

}  // namespace nmoe
