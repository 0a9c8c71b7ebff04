// Tokens of generation as tiles that attend to a slot of a cache together: tokens that follow each other in a slot,
// from one multiple of some positions to the next at most.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/kernels/attention/cached_places.cuh"
#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda::sm90 {

// Positions [begin, end) of a slot, of which the first is the token `token`.
struct SlotRows {
  int slot, begin, end, token;
};

struct SlotTokens {
  CachePlaces places;
  int num_tokens;      // at most kMaxLatentTokens
  int tile_positions;  // a tile's first position but of the first tokens of a run is a multiple of it
  int4* tiles;         // = [1 + num_tokens]: the number of tiles, then SlotRows
  __nv_bfloat16* out;  // = NaN for tokens that have no place
  int64_t out_width;   // values of a token
};
// Those with the most keys come first, so that what is worked on last is short; among equals in any order, on which no
// bit may depend.
void find_slot_tiles(Context& ctx, const SlotTokens& tokens);

// Of `tiles` [1 + T, 4] i32.
inline const int* num_of_tiles(const Tensor& tiles) { return tiles.data<int32_t>(); }
inline const SlotRows* rows_of_tiles(const Tensor& tiles) { return static_cast<const SlotRows*>(tiles.raw()) + 1; }

}  // namespace nmoe::cuda::sm90
