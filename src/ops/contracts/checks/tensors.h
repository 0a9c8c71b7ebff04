// What several checks ask of tensors.
#pragma once

#include "base/kinds.h"
#include "ops/contracts/linear.h"
#include "ops/contracts/quantize.h"
#include "tensor/tensor.h"

namespace nmoe {

// The dtypes of computations, and of them those of statistics (ops/ops.h).
constexpr bool is_act(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF64; }
constexpr bool is_stat(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

inline bool is(const Tensor& x, DType dtype, const Shape& shape) { return x.dtype() == dtype && x.shape() == shape; }
// A single number.
inline bool is_one(const Tensor& x, DType dtype) { return x.dtype() == dtype && x.defined() && x.num_elements() == 1; }
inline bool is_one_if_defined(const Tensor& x, DType dtype) { return !x.defined() || is_one(x, dtype); }

// Whether so many rows are those of the sequences, and documents, if any are given, have bounds (AttentionShape,
// contracts/attention.h).
inline bool are_sequences(int64_t num_rows, int64_t num_seqs, int64_t seq_len, const Tensor& cu_seqlens) {
  return num_seqs * seq_len == num_rows &&
         (!cu_seqlens.defined() || (cu_seqlens.dtype() == DType::kI32 && cu_seqlens.shape().rank() == 1));
}

// Of rows [N, C], where there are codes.
void check_codes(const RowCodes& codes, const Shape& rows);
// Of the columns of rows [R, C] in groups, where there are codes.
void check_codes(const ColumnCodes& columns, int64_t num_rows, int64_t width, int64_t num_groups);

}  // namespace nmoe
