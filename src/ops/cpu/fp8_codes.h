// FP8 codes beside an operation's result, where they are wanted, and what codes stand for. Formats:
// ops/contracts/quantize.h.
#pragma once

#include "ops/contracts/quantize.h"
#include "ops/cpu/context.h"
#include "tensor/arena.h"

namespace nmoe::cpu {

// Of the rows of x [N, C] that are there (num_rows [1] i32; undefined: N).
template <class Real>
void write_codes(Context& ctx, Tensor x, Tensor num_rows, const RowCodes& codes);
// Of x's columns, in groups of rows as offsets [G + 1] i32 says.
template <class Real>
void write_columns(Context& ctx, Tensor x, Tensor offsets, const ColumnCodes& columns);
// y [C] = what the codes of row `row` stand for.
template <class Real>
void widen_row(const RowCodes& codes, int64_t row, Real* y);
// [N, C] F32 in `scope`: what the codes of rows stand for. A counting run claims the same.
Tensor widened_rows(Context& ctx, ArenaScope& scope, const RowCodes& codes);
// [num_rows, C] F32 in `scope`: what the columns of rows stand for. A counting run claims the same.
Tensor widened_columns(Context& ctx, ArenaScope& scope, const ColumnCodes& columns, Tensor offsets, int64_t num_rows);

}  // namespace nmoe::cpu
