// Which tiles of scores attention's backward works on, and in what order they add to the gradients of queries.
//
// A tile is kRows queries x kKeys keys of one head. Row i of a sequence sees the keys [low(i), i], where low(i) is the
// first position of its document or of its window; low never falls from a row to the next. So the keys that a tile of
// rows sees are one run of blocks, and the tiles of rows that see a block of keys are one run too.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nmoe::cuda::sm90 {

// low(i) of the rows of a sequence; `lows` is undefined (null) where it is always 0.
template <int kRows, int kKeys>
struct TileRange {
  int seq_len;

  static_assert(kKeys % kRows == 0);
  __host__ __device__ int row_tiles() const { return (seq_len + kRows - 1) / kRows; }
  __host__ __device__ int key_blocks() const { return (seq_len + kKeys - 1) / kKeys; }
  // The first tile of rows of which one sees a key of the block.
  __device__ static int first_tile(int block) { return block * (kKeys / kRows); }
  // The first and the last block of keys that a tile of rows sees.
  __device__ static int last_block(int tile) { return tile / (kKeys / kRows); }
  __device__ static int first_block(int tile, const int32_t* lows) {
    return lows == nullptr ? 0 : lows[tile * kRows] / kKeys;
  }
  // Behind the last tile of rows of which one sees a key of the block: by all lanes of a warp.
  __device__ int end_tile(int block, const int32_t* lows) const {
    int tile = first_tile(block);
    if (lows == nullptr) return row_tiles();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (;; tile += 32) {
      const bool sees = tile + lane < row_tiles() && lows[(tile + lane) * kRows] < (block + 1) * kKeys;
      const unsigned seeing = __ballot_sync(0xFFFFFFFFU, sees);
      if (seeing != 0xFFFFFFFFU) return tile + __popc(seeing);  // ones, then zeros: low never falls
    }
  }
};

}  // namespace nmoe::cuda::sm90
