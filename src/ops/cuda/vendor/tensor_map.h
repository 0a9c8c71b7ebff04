// Descriptions of matrices for Hopper's Tensor Memory Accelerator (TMA).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace nmoe::cuda {

// Panels of 64 x 64 of a BF16 matrix [rows, cols], row-major, copied with the swizzle of 128 bytes
// (sm90/wgmma.cuh). `data` is aligned to 16 bytes and cols is a multiple of 8; rows, cols > 0. Throws where the
// driver refuses.
CUtensorMap panel_map(const void* data, int64_t rows, int64_t cols);
// The same of `count` matrices [rows, cols], one behind the other, at (column, row, matrix). What lies beyond a matrix
// comes as zeros, not as the next one's.
CUtensorMap panels_map(const void* data, int64_t count, int64_t rows, int64_t cols);
// The same of a matrix of bytes: boxes of 128 of each of `box_rows` (at most 256) rows; cols is a multiple of 16.
CUtensorMap byte_map(const void* data, int64_t rows, int64_t cols, int box_rows);

// Boxes of `box_rows` (at most 256) rows of 32 values of one of `count` F32 matrices [rows, cols], row-major, one
// behind the other, at (column, row, matrix), with the swizzle of 128 bytes. `data` is aligned to 16 bytes, cols is a
// multiple of 4.
CUtensorMap sum_map(const void* data, int64_t count, int64_t rows, int64_t cols, int box_rows);

// Heads of `size` values of a BF16 tensor of `num_seqs` sequences of `seq_len` tokens, whose rows are `stride` elements
// apart and the heads of a row `head_stride`: boxes of 64 values of one head of `box_rows` (at most 256) positions of
// one sequence, at (value, head, position, sequence), with the swizzle of 128 bytes. What lies beyond a head or a
// sequence comes as zeros. `data` is aligned to 16 bytes, size and strides are multiples of 8.
struct HeadRows {
  const void* data;
  int64_t num_seqs, seq_len, heads, size, stride, head_stride;
};
CUtensorMap head_map(const HeadRows& rows, int box_rows);

// BF16 matrices of weights, `count` of [parts, units, cols], each row-major, `stride` elements from one to the next:
// boxes of 64 values of `box_units` units of every part of one matrix, at (value, unit, 0, matrix), with the swizzle of
// 128 bytes. What lies beyond a part or a row comes as zeros. `data` is aligned to 16 bytes, cols and the stride are
// multiples of 8, a box has at most 256 units.
struct UnitMatrices {
  const void* data;
  int64_t count, stride, parts, units, cols;
};
CUtensorMap unit_map(const UnitMatrices& matrices, int box_units);

}  // namespace nmoe::cuda
