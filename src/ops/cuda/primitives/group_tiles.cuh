// Tiles of products over ragged groups of rows: which expert, rows and columns tile number t is.
#pragma once

#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {

// Where the rows of each group begin: as offsets [groups + 1] say or, without, every rows_each of num_rows.
struct GroupBounds {
  const int32_t* offsets = nullptr;
  int num_rows = 0, rows_each = 0;

  __host__ __device__ GroupBounds(const int32_t* ragged) : offsets(ragged) {}
  __host__ __device__ GroupBounds(int rows, int each) : num_rows(rows), rows_each(each) {}
  __device__ int begin(int group) const {
    return offsets != nullptr ? offsets[group] : min(group * rows_each, num_rows);
  }
};

// The tiles of all experts, numbered by (expert, column tile, row tile): tiles that share a weight run together. A
// warp's lanes call together and hold the same cursor, which only moves forward.
template <int kTileRows>
class GroupTileCursor {
 public:
  // Expert e owns rows [bounds.begin(e), bounds.begin(e + 1)).
  __device__ GroupTileCursor(const GroupBounds& bounds, int num_experts, int num_col_tiles)
      : bounds_(bounds), num_experts_(num_experts), num_col_tiles_(num_col_tiles) {
    load_experts(0, 0);
  }

  // Moves to tile `tile`, which is not before that of the last call. False: there are no more.
  __device__ bool move_to(int tile) {
    unsigned ends_behind = __ballot_sync(kAllLanes, tile < end_);
    while (ends_behind == 0) {
      if (first_expert_ + kWarp >= num_experts_) return false;
      load_experts(first_expert_ + kWarp, __shfl_sync(kAllLanes, end_, kWarp - 1));
      ends_behind = __ballot_sync(kAllLanes, tile < end_);
    }
    const int owner = __ffs(static_cast<int>(ends_behind)) - 1;
    const int begin = __shfl_sync(kAllLanes, begin_, owner), rows = __shfl_sync(kAllLanes, rows_, owner);
    const int row_tiles = ceil_div(rows, kTileRows);
    const int in_expert = tile - (__shfl_sync(kAllLanes, end_, owner) - row_tiles * num_col_tiles_);
    expert_row_begin_ = begin;
    expert_rows_ = rows;
    expert_ = first_expert_ + owner;
    col_tile_ = in_expert / row_tiles;
    row_tile_ = in_expert - col_tile_ * row_tiles;
    return true;
  }

  __device__ int expert() const { return expert_; }
  __device__ int row_begin() const { return expert_row_begin_; }  // of the expert
  __device__ int num_rows() const { return expert_rows_; }        // of the expert
  __device__ int row_tile() const { return row_tile_; }
  __device__ int col_tile() const { return col_tile_; }

 private:
  // Reads the next 32 experts, one a lane, from `first` on; `tiles_before` are those of the experts before.
  __device__ void load_experts(int first, int tiles_before) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, expert = first + lane;
    first_expert_ = first;
    begin_ = expert < num_experts_ ? bounds_.begin(expert) : 0;
    rows_ = expert < num_experts_ ? bounds_.begin(expert + 1) - begin_ : 0;
    end_ = ceil_div(rows_, kTileRows) * num_col_tiles_;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int below = __shfl_up_sync(kAllLanes, end_, offset);
      if (lane >= offset) end_ += below;
    }
    end_ += tiles_before;
  }

  GroupBounds bounds_;
  int num_experts_;
  int num_col_tiles_;
  int first_expert_ = 0;  // lane 0's
  int begin_ = 0, rows_ = 0,
      end_ = 0;  // of this lane's expert: its first row, its rows, the number behind its last tile
  int expert_ = 0, expert_row_begin_ = 0, expert_rows_ = 0, row_tile_ = 0, col_tile_ = 0;  // of the current tile
};

}  // namespace nmoe::cuda
