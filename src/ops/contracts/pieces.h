// How sums over an expert's rows are cut, in gradients of experts' weights (GroupedLinearBackwardWeight, linear.h).
#pragma once

#include <cstdint>

namespace nmoe {

// The CPU and Hopper's kernels for BF16 and FP8 sum over the rows of an expert that has more than kUncutRows in pieces
// of kPieceRows, from its first row on, and add the pieces' sums to dw in their order: an expert that has most rows is
// work for many. Others are one piece each, since the longest sums are begun first and the short ones fill up the time.
// What an expert's pieces are depends on its own rows alone, and so is the same on any number of ranks and
// multiprocessors. Both numbers are part of a run's bits. Other CUDA kernels (plain tiles, Blackwell) do not cut.
//
// NMOE_PIECE_ROWS lowers the first, for tests, so that experts of small models are cut, never for a run. A build with
// -DNMOE_PIECE_ROWS=256 among its C++ and CUDA flags does so in every test that a GPU runs.
#ifndef NMOE_PIECE_ROWS
#define NMOE_PIECE_ROWS 8192
#endif
constexpr int64_t kPieceRows = NMOE_PIECE_ROWS;
constexpr int64_t kUncutRows = 8 * kPieceRows;
static_assert(kPieceRows <= kUncutRows, "a piece is not cut again");

// The rows of an expert's pieces, of which the last may have fewer.
constexpr int64_t piece_rows(int64_t num_rows) { return num_rows > kUncutRows ? kPieceRows : num_rows; }

// How many pieces there can be behind each expert's first one, of so many rows in all.
constexpr int64_t max_later_pieces(int64_t num_rows) { return num_rows > kUncutRows ? (num_rows - 1) / kPieceRows : 0; }

}  // namespace nmoe
