// Tile schedulers of persistent kernels over ragged groups of rows: which tile of C a block works on next.
//
// A scheduler is used by one warp of a block, all lanes together. `next(tile)` is false when nothing is left for this
// block. Every tile goes to one block, once.
#pragma once

#include <cstdint>

#include "ops/contracts/pieces.h"
#include "ops/cuda/plans/block_operands.h"
#include "ops/cuda/primitives/group_tiles.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/context.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/turns.cuh"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// A tile of the matrix C that belongs to one group.
struct GroupTile {
  int group;
  int group_begin, group_rows;  // the group's rows in the ragged operands: the first, and how many
  int row, col;                 // the tile's first row and column in the group's C
  PieceTurn turn = {};          // of a LaterPieceScheduler only
};

// The rows of a group's first piece (contracts/pieces.h).
__device__ inline int first_piece_rows(int group_rows) {
  return group_rows > static_cast<int>(kUncutRows) ? static_cast<int>(kPieceRows) : group_rows;
}

// The next of `tiles_taken`. By all lanes of a warp.
__device__ inline int take_tile(int* tiles_taken) {
  const int tile = threadIdx.x % kWarp == 0 ? atomicAdd(tiles_taken, 1) : 0;
  return __shfl_sync(kAllLanes, tile, 0);
}

// For a C whose rows are the groups' rows: all tiles take equally long, and a block has every gridDim.x-th. Tiles are
// in the order of GroupTileCursor.
template <int kTileRows, int kTileCols>
class StaticTileScheduler {
 public:
  // C is `width` wide.
  __device__ StaticTileScheduler(const GroupBounds& bounds, int num_groups, int width)
      : cursor_(bounds, num_groups, ceil_div(width, kTileCols)), next_(static_cast<int>(blockIdx.x)) {}

  __device__ bool next(GroupTile& tile) {
    if (!cursor_.move_to(next_)) return false;
    next_ += static_cast<int>(gridDim.x);
    tile.group = cursor_.expert();
    tile.group_begin = cursor_.row_begin();
    tile.group_rows = cursor_.num_rows();
    tile.row = cursor_.row_tile() * kTileRows;
    tile.col = cursor_.col_tile() * kTileCols;
    return true;
  }

 private:
  GroupTileCursor<kTileRows> cursor_;
  int next_;
};

// Groups whose tiles of a C of the same size, [rows, width], blocks take one after another.
struct GroupQueue {
  const int32_t* offsets;
  int num_groups;
  const int* order;  // that of order_longest_first()
  int* tiles_taken;  // one of its counters
  int rows, width;
};

// For a C of the same size in every group, with the groups' rows as what is summed over: tiles of larger groups take
// longer. They come first, and a block takes the next tile whenever it is free.
template <int kTileRows, int kTileCols>
class DynamicTileScheduler {
 public:
  // The queue has the first of the counters. skip_empty: groups without rows have no tiles.
  __device__ DynamicTileScheduler(const GroupQueue& queue, bool skip_empty) : queue_(queue), skip_empty_(skip_empty) {}

  __device__ bool next(GroupTile& tile) {
    if (next_ < 0) next_ = take_tile(queue_.tiles_taken);
    const int row_tiles = ceil_div(queue_.rows, kTileRows), tiles = row_tiles * ceil_div(queue_.width, kTileCols);
    const int place = next_ / tiles, in_group = next_ % tiles;
    if (place >= queue_.num_groups) return false;
    next_ = take_tile(queue_.tiles_taken);  // early, so that the answer is there when it is needed
    tile.group = queue_.order[place];
    tile.group_begin = queue_.offsets[tile.group];
    tile.group_rows = queue_.offsets[tile.group + 1] - tile.group_begin;
    if (tile.group_rows <= 0 && skip_empty_) return false;  // and all groups behind it are empty too
    tile.row = in_group % row_tiles * kTileRows;
    tile.col = in_group / row_tiles * kTileCols;
    return true;
  }

 private:
  GroupQueue queue_;
  bool skip_empty_;
  int next_ = -1;  // not asked yet
};

// For the pieces of groups' rows behind each group's first: a tile's group_begin and group_rows are those of its piece.
// They come piece by piece, so that the one that a piece waits for was taken before it.
template <int kTileRows, int kTileCols>
class LaterPieceScheduler {
 public:
  // The queue has the second of the counters. max_pieces: of all groups.
  __device__ LaterPieceScheduler(const GroupQueue& queue, int max_pieces) : queue_(queue), max_pieces_(max_pieces) {}

  // Whether any group has such a piece. By any thread.
  __device__ static bool has_work(const int32_t* offsets, const int* order) {
    return offsets[order[0] + 1] - offsets[order[0]] > static_cast<int>(kUncutRows);
  }

  __device__ bool next(GroupTile& tile) {
    if (next_ < 0) next_ = take_tile(queue_.tiles_taken);
    const int row_tiles = ceil_div(queue_.rows, kTileRows), tiles = row_tiles * ceil_div(queue_.width, kTileCols);
    const int piece = next_ / tiles, in_group = next_ % tiles;
    for (;; ++place_) {
      if (place_ == queue_.num_groups) return false;
      tile.group = queue_.order[place_];
      tile.group_begin = queue_.offsets[tile.group];
      tile.group_rows = queue_.offsets[tile.group + 1] - tile.group_begin;
      if (tile.group_rows == first_piece_rows(tile.group_rows)) return false;  // nor is any group behind it cut
      const int num_pieces = (tile.group_rows - 1) / kRows;
      if (piece < first_piece_ + num_pieces) break;
      first_piece_ += num_pieces;
    }
    next_ = take_tile(queue_.tiles_taken);
    const int begin = (1 + piece - first_piece_) * kRows, left = tile.group_rows - begin;
    tile.group_begin += begin;
    tile.group_rows = min(left, kRows);
    tile.row = in_group % row_tiles * kTileRows;
    tile.col = in_group / row_tiles * kTileCols;
    tile.turn = {.place = static_cast<unsigned>(in_group * max_pieces_ + piece),
                 .waits = piece > first_piece_,
                 .is_last = left <= kRows};
    return true;
  }

 private:
  static constexpr int kRows = static_cast<int>(kPieceRows);

  GroupQueue queue_;
  int max_pieces_;
  int place_ = 0, first_piece_ = 0;  // the group that was reached, and how many pieces those in front of it have
  int next_ = -1;                    // not asked yet
};

// Enqueues what a DynamicTileScheduler and a LaterPieceScheduler read: order [num_groups] i32 = the groups by falling
// number of rows, equal ones by index; counters = 0. To be called before every launch of a kernel that uses one.
void order_longest_first(Context& ctx, Tensor offsets, const TileOrder& order);

}  // namespace nmoe::cuda::sm90
