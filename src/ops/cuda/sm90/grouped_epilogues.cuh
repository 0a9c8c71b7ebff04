// What becomes of the tiles of a grouped product on Hopper (grouped_linear.cu): an epilogue is a type, made of an
// activation (primitives/activation.cuh), if any, and of a list of what is stored of it. A new activation is a functor
// there, a new output a type like the stores here, with its place in GroupedProduct.
//
// An epilogue says
//   kParts      parts of pre-activations that a tile has side by side, or 1
//   kPreParts   parts of pre-activations that its writers read, or 0
//   kWeighted   whether C's rows have weights
//   write<L>()  what a writer does with a tile that lies in the stash; none where consumers write their sums
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/sm90/grouped_layout.cuh"
#include "ops/cuda/sm90/row_gather.cuh"
#include "ops/cuda/sm90/tile_writer.cuh"
#include "ops/cuda/sm90/tma.cuh"

namespace nmoe::cuda::sm90 {

// The kernel's arguments.
struct GroupedProduct {
  CUtensorMap a, b;  // but of the operand that is gathered; ragged: b has a matrix for each expert
  CUtensorMap sums;  // of C, weights' gradients: [experts, rows, width]
  GatheredRows gathered;
  const int32_t* offsets;
  const int* order;  // of the experts; ragged: not used, nor is tiles_taken
  int* tiles_taken;
  void* c;
  int num_experts;
  int rows;                  // of an expert's C; ragged: not used
  int width;                 // of C; with an activation: of the hidden units, of which C has as many parts
  int depth;                 // ragged: k; else not used
  const float* row_weight;   // of C's rows; with an activation only, as are
  __nv_bfloat16* hidden;     // = [R, width]; null, backward: not wanted
  const __nv_bfloat16* pre;  // [R, parts of width], backward; C is like it
  float* row_sums;           // = [tiles of width, capacity], backward: of the gradients of row weights
  int capacity;              // of rows
  bool accumulate;           // weights' gradients: whether C is added to
  double* squares;           // = [num_experts, square_parts], of those; null: not wanted
  const float* scale;        // [num_experts], what sums are multiplied by; kScaled only
  int max_later_pieces;      // kLaterPieces only, as are
  int32_t* turns;            // [tiles of an expert, max_later_pieces]
};

// --- stores, of the tile's hidden units
// Pre-activations as they lie in the stash, in C.
template <class A>
struct StorePre {
  __nv_bfloat16* c;
  int64_t width;

  __device__ StorePre(const GroupedProduct& p, const Tile& tile)
      : c(static_cast<__nv_bfloat16*>(p.c) + (tile.c_row * A::kParts * p.width + tile.c_col)), width(p.width) {}
  __device__ void operator()(int row, int col, int first, const ActivatedUnits<A>& units) const {
    __nv_bfloat16* const target = c + row * A::kParts * width + col;
#pragma unroll
    for (int part = 0; part < A::kParts; ++part) {
      *reinterpret_cast<uint4*>(target + first + part * width) = units.pre[part];
    }
  }
};
// Their gradients, in C.
template <class A>
struct StorePreGradients {
  __nv_bfloat16* c;
  int64_t width;

  __device__ StorePreGradients(const GroupedProduct& p, const Tile& tile)
      : c(static_cast<__nv_bfloat16*>(p.c) + (tile.c_row * A::kParts * p.width + tile.c_col)), width(p.width) {}
  __device__ void operator()(int row, int col, int first, const UnitGradients<A>& units) const {
    __nv_bfloat16* const target = c + (row * A::kParts * width + first + col);
#pragma unroll
    for (int part = 0; part < A::kParts; ++part) store8(target + part * width, units.dpre[part]);
  }
};
// What the activation makes; backward, if it is wanted again.
template <class A>
struct StoreHidden {
  __nv_bfloat16* hidden;  // or null
  int64_t width;

  __device__ StoreHidden(const GroupedProduct& p, const Tile& tile)
      : hidden(p.hidden == nullptr ? nullptr : p.hidden + tile.c_row * p.width + tile.c_col), width(p.width) {}
  __device__ void operator()(int row, int col, int first, const ActivatedUnits<A>& units) const {
    store8(hidden + row * width + col + first, units.h);
  }
  __device__ void operator()(int row, int col, int first, const UnitGradients<A>& units) const {
    if (hidden == nullptr) return;
    float made[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) made[i] = activated<__nv_bfloat16, A>(units.pre, i) * units.weight;
    store8(hidden + row * width + first + col, made);
  }
};

// --- epilogues
// Weights' gradients, which consumers write themselves, or add to what is there.
struct SumWeights {
  static constexpr int kParts = 1, kPreParts = 0;
  static constexpr bool kWeighted = false;
};

// C as it is.
struct StoreRows {
  static constexpr int kParts = 1, kPreParts = 0;
  static constexpr bool kWeighted = false;

  template <class L>
  __device__ static void write(const GroupedProduct& p, const Tile& tile, const typename L::Stash& stash, int writer,
                               int parity, std::byte* /*rings*/) {
    write_tile(stash, writer, parity,
               TileTarget{.c = static_cast<__nv_bfloat16*>(p.c) + (tile.c_row * p.width + tile.c_col),
                          .width = p.width,
                          .num_rows = min(tile.num_rows, L::kTileRows),
                          .num_cols = tile.num_cols});
  }
};

// What the product is, and what A makes of it.
template <class A, template <class> class... Stores>
struct Activate {
  static constexpr int kParts = A::kParts, kPreParts = 0;
  static constexpr bool kWeighted = true;

  template <class L>
  __device__ static void write(const GroupedProduct& p, const Tile& tile, const typename L::Stash& stash, int writer,
                               int parity, std::byte* /*rings*/) {
    write_activated<A, L::kTileCols>(stash, writer, parity, min(tile.num_rows, L::kTileRows), tile.num_cols,
                                     Stores<A>(p, tile)...);
  }
};

// The product is the gradients of what A made of the pre-activations of the same rows.
template <class A, template <class> class... Stores>
struct ActivateBackward {
  static constexpr int kParts = 1, kPreParts = A::kParts;
  static constexpr bool kWeighted = true;

  template <class L>
  __device__ static void write(const GroupedProduct& p, const Tile& tile, const typename L::Stash& stash, int writer,
                               int parity, std::byte* rings) {
    write_activation_gradients<A>(
        stash, writer, parity, typename L::Ring{rings + writer * L::Ring::kBytes},
        PreTile{.pre = p.pre + (tile.c_row * A::kParts * p.width + tile.c_col),
                .dweight = p.row_sums + static_cast<int64_t>(tile.c_col / L::kTileCols) * p.capacity + tile.c_row,
                .hidden_width = p.width,
                .num_rows = min(tile.num_rows, L::kTileRows),
                .num_cols = min(tile.num_cols, L::kTileCols)},
        Stores<A>(p, tile)...);
  }
};

}  // namespace nmoe::cuda::sm90
