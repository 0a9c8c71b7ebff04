// Tile schedulers of persistent kernels over ragged groups of rows: which tile of C a block works on next.
//
// A scheduler is used by one warp of a block, all lanes together. `next(tile)` is false when nothing is left for this
// block. Every tile goes to one block, once.
#pragma once

#include <cstdint>

#include "ops/cuda/primitives/group_tiles.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/context.h"
#include "ops/cuda/runtime/launch.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// A tile of the matrix C that belongs to one group.
struct GroupTile {
  int group;
  int group_begin, group_rows;  // the group's rows in the ragged operands: the first, and how many
  int row, col;                 // the tile's first row and column in the group's C
};

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

// For a C of the same size in every group, with the groups' rows as what is summed over: tiles of larger groups take
// longer. They come first, and a block takes the next tile whenever it is free.
template <int kTileRows, int kTileCols>
class DynamicTileScheduler {
 public:
  // `order` and `tiles_taken` are those of order_longest_first(). C is [rows, width] in every group. skip_empty: groups
  // without rows have no tiles.
  __device__ DynamicTileScheduler(const int32_t* offsets, int num_groups, const int* order, int* tiles_taken, int rows,
                                  int width, bool skip_empty)
      : offsets_(offsets),
        order_(order),
        tiles_taken_(tiles_taken),
        num_groups_(num_groups),
        rows_(rows),
        width_(width),
        skip_empty_(skip_empty) {}

  __device__ bool next(GroupTile& tile) {
    if (next_ < 0) next_ = take();
    const int row_tiles = ceil_div(rows_, kTileRows), tiles = row_tiles * ceil_div(width_, kTileCols);
    const int place = next_ / tiles, in_group = next_ % tiles;
    if (place >= num_groups_) return false;
    next_ = take();  // early, so that the answer is there when it is needed
    tile.group = order_[place];
    tile.group_begin = offsets_[tile.group];
    tile.group_rows = offsets_[tile.group + 1] - tile.group_begin;
    if (tile.group_rows <= 0 && skip_empty_) return false;  // and all groups behind it are empty too
    tile.row = in_group % row_tiles * kTileRows;
    tile.col = in_group / row_tiles * kTileCols;
    return true;
  }

 private:
  __device__ int take() const {
    const int tile = threadIdx.x % kWarp == 0 ? atomicAdd(tiles_taken_, 1) : 0;
    return __shfl_sync(kAllLanes, tile, 0);
  }

  const int32_t* offsets_;
  const int* order_;
  int* tiles_taken_;
  int num_groups_, rows_, width_;
  bool skip_empty_;
  int next_ = -1;  // not asked yet
};

// Enqueues what a DynamicTileScheduler reads: order [num_groups] i32 = the groups by falling number of rows, equal ones
// by index; tiles_taken [1] i32 = 0. To be called before every launch of a kernel that uses one.
void order_longest_first(Context& ctx, Tensor offsets, Tensor order, Tensor tiles_taken);

}  // namespace nmoe::cuda::sm90
