// What becomes of the sums of FP8 products on Hopper (grouped_fp8.cu): an epilogue is a type, made of an activation
// (primitives/activation.cuh), if any, and of a list of what is stored. A new activation is a functor there, a new
// output a type like the stores here, with its place in Product.
//
// An epilogue says
//   kParts        parts of pre-activations that a consumer's products are of, or 1
//   kPreParts     parts of pre-activations that it reads, or 0
//   kColumns      whether it leaves codes of columns, which many warps make together
//   OfTile<L>     a tile's: made before the products, when what it reads is asked for, start(total) then, which may
//                 begin with something else than 0, and finish(total) behind them
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ops/cuda/primitives/activation.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/fp8.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/sm90/epilogue.cuh"
#include "ops/cuda/sm90/fp8_epilogue.cuh"
#include "ops/cuda/sm90/grouped_fp8_layout.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "tensor/low_precision.h"

namespace nmoe::cuda::sm90::fp8 {

using Sums = float[kTileCols / 2];  // a thread's of a product

// A consumer warp's share of a tile.
template <class L>
struct WarpTile {
  const Product& p;
  const Tile& tile;
  int consumer, warp;  // the warp of the consumer's
  int num_rows;        // of the consumer that exist
  int64_t first_row;   // of the consumer
  std::byte* staged;   // the warp's own
  std::byte* staging;  // of all consumers
};

// What activations multiply the rows of each product by: asked for ahead of its use.
template <class L>
struct ProductWeights {
  RowWeights of[L::kRowProducts] = {};

  __device__ explicit ProductWeights(const WarpTile<L>& at) {
#pragma unroll
    for (int product = 0; product < L::kRowProducts; ++product) {
      const int row = product * kProductRows + product_row();
      if (row < at.num_rows) of[product].upper = at.p.row_weight[at.first_row + row];
      if (row + 8 < at.num_rows) of[product].lower = at.p.row_weight[at.first_row + row + 8];
    }
  }
};

// total = what is added to the rows of a product: `addend` begins with its first row at the tile's first column.
__device__ inline void load_addend(float (&total)[kTileCols / 2], const __nv_bfloat16* addend, int num_rows,
                                   int num_cols, int64_t stride) {
#pragma unroll
  for (int i = 0; i < kTileCols / 2; i += 2) {
    const int row = product_row() + 8 * (i / 2 % 2), col = i / 4 * 8 + product_col();
    if (row >= num_rows || col >= num_cols) continue;
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(addend + row * stride + col);
    total[i] = low_bf16(pair);
    total[i + 1] = high_bf16(pair);
  }
}

// sums as words of BF16, zeros in rows that do not exist.
__device__ inline PairWords pack_words(float (&sums)[kTileCols / 2], int num_rows) {
  const PairWords words{sums};
  const int own_row = static_cast<int>(threadIdx.x) % kWarp / 4;
#pragma unroll
  for (int j = 0; j < kFp8Octets; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t pair = bf16_pair(sums[PairWords::place(j, h, 0)], sums[PairWords::place(j, h, 1)]);
      words.set(j, h, 0, own_row + 8 * h < num_rows ? pair : 0);
    }
  }
  return words;
}

// FP8 of the gradients that store_activation_gradients() leaves in a warp's staging, the first of whose rows is `row`:
// two lanes have a row's columns of a part at a time, 64 each.
template <int kParts>
__device__ void store_gradient_codes(const Product& p, const PreRows<kParts>& rows, int64_t row, int col) {
  using Rows = PreRows<kParts>;
  constexpr int kVectors = Rows::kChunkCols / 8;
  static_assert(2 * Rows::kChunkCols == kTileCols && Rows::kChunks == 2 && 2 * kWarpRows == kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, own_row = lane / 2, chunk = lane % 2;
  const int64_t stride = kParts * static_cast<int64_t>(p.width), scale_stride = stride / kTileCols;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const std::byte* const staged = rows.part(chunk, part) + own_row * Rows::Staged::kRowBytes;
    uint4 vectors[kVectors];
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      vectors[i] = reinterpret_cast<const uint4*>(staged)[i];
      largest = larger_magnitudes(largest, vectors[i]);
    }
    largest = __vmaxu2(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    const uint8_t code = e8m0_scale(amax_of_bits(larger_magnitude(largest)));
    const float factor = e8m0_to_inverse(code);
    if (own_row >= rows.num_rows) continue;
    const int64_t at = row + own_row, first = part * static_cast<int64_t>(p.width) + col;
    auto* const target = reinterpret_cast<uint4*>(p.codes.values + at * stride + first + chunk * Rows::kChunkCols);
#pragma unroll
    for (int i = 0; i < kVectors; i += 2) {
      const uint2 low = e4m3_eight(vectors[i], factor), high = e4m3_eight(vectors[i + 1], factor);
      target[i / 2] = make_uint4(low.x, low.y, high.x, high.y);
    }
    if (chunk == 0) p.codes.scales[at * scale_stride + first / kTileCols] = code;
  }
}

// Codes of columns of words(product), which are PairWords of `width` columns by parts.
template <class L, class Words>
__device__ void store_columns(const WarpTile<L>& at, int parts, const Words& words) {
  const Product& p = at.p;
  if constexpr (L::kColumnGroups == 1) {
    const typename L::Columns columns(at.staging, kColumnsBarrier, at.consumer * (kWarpgroup / kWarp) + at.warp,
                                      static_cast<int>(threadIdx.x) - kWarpgroup);
    const int64_t first_col = static_cast<int64_t>(at.tile.block) * parts * p.width + at.tile.col;
    columns.store(words, p.columns + first_col * kFp8Cols, p.column_scales + first_col, p.width);
  } else {
    const typename L::Columns columns(at.staging + at.consumer * (L::kStagedBytes / kConsumers),
                                      kColumnsBarrier + at.consumer, at.warp,
                                      static_cast<int>(threadIdx.x) % kWarpgroup);
    const int64_t stride = parts * static_cast<int64_t>(p.width);
    const int64_t first_col = (at.tile.block + at.consumer) * stride + at.tile.col;
    columns.store(words, p.columns + first_col * kFp8Cols, p.column_scales + first_col, p.width);
  }
}

// --- stores of what an activation makes: called with the rows of a product, at what they are for. In this order
//   pre       sums of each part, in F32
//   pre_words the same as words of BF16, zeros in rows that do not exist
//   hidden    what A makes of these, times the rows' weights, rounded to BF16, in F32
//   words     the same as words, if any of the list wants them
//   tile      the words of all products, by all warps
// A warp's rows of a product.
struct StoredRows {
  const Product& p;
  int64_t row;
  int col, num_rows;
  std::byte* staged;
};
struct StoreNothing {
  static constexpr bool kColumns = false;
  __device__ static bool wants_words(const Product&) { return false; }
  template <int kParts>
  __device__ static void pre(const StoredRows&, const Sums*) {}
  __device__ static void pre_words(const StoredRows&, const PairWords&, int /*part*/) {}
  __device__ static void hidden(const StoredRows&, const Sums&) {}
  __device__ static void words(const StoredRows&, const PairWords&) {}
  template <class L, class Words>
  __device__ static void tile(const WarpTile<L>&, const Words&) {}
};
// Pre-activations, where they are wanted.
struct StorePre : StoreNothing {
  template <int kParts>
  __device__ static void pre(const StoredRows& at, const Sums* parts) {
    if (at.p.y == nullptr) return;
    const int64_t width = kParts * static_cast<int64_t>(at.p.width);
    __nv_bfloat16* const target = at.p.y + at.row * width + at.col;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      write_rows<kTileCols>(parts[part], at.num_rows, kTileCols, target + part * at.p.width, width, at.staged);
    }
  }
};
struct StorePreCodes : StoreNothing {
  __device__ static void pre_words(const StoredRows& at, const PairWords& words, int part) {
    if (at.p.pre_codes.values == nullptr) return;
    store_row_codes(words, 0, at.p.pre_codes, at.row, at.col + part * at.p.width, at.num_rows, at.staged);
  }
};
struct StoreHidden : StoreNothing {
  __device__ static void hidden(const StoredRows& at, const Sums& h) {
    if (at.p.h == nullptr) return;
    write_rows<kTileCols>(h, at.num_rows, kTileCols, at.p.h + at.row * at.p.width + at.col, at.p.width, at.staged);
  }
};
struct StoreHiddenCodes : StoreNothing {
  __device__ static bool wants_words(const Product& p) { return p.codes.values != nullptr; }
  __device__ static void words(const StoredRows& at, const PairWords& words) {
    store_row_codes(words, 0, at.p.codes, at.row, at.col, at.num_rows, at.staged);
  }
};
// Beside codes of rows.
struct StoreHiddenColumns : StoreNothing {
  static constexpr bool kColumns = true;
  __device__ static bool wants_words(const Product&) { return true; }
  template <class L, class Words>
  __device__ static void tile(const WarpTile<L>& at, const Words& words) {
    store_columns(at, /*parts=*/1, words);
  }
};

// --- epilogues
// y, + the addend.
struct StoreRows {
  static constexpr int kParts = 1, kPreParts = 0;
  static constexpr bool kColumns = false;

  template <class L>
  struct OfTile {
    const WarpTile<L>& at;

    __device__ explicit OfTile(const WarpTile<L>& tile) : at(tile) {}
    __device__ void start(Sums (&total)[kProducts]) const {
      const Product& p = at.p;
      if (p.addend == nullptr) return;
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        load_addend(total[product], p.addend + (at.first_row + product * kProductRows) * p.width + at.tile.col,
                    at.num_rows - product * kProductRows, at.tile.num_cols, p.width);
      }
    }
    __device__ void finish(Sums (&total)[kProducts]) const {
      const Product& p = at.p;
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        const int row = product * kProductRows + at.warp * kWarpRows;
        write_rows<kTileCols>(total[product], at.num_rows - row, at.tile.num_cols,
                              p.y + (at.first_row + row) * p.width + at.tile.col, p.width, at.staged);
      }
    }
  };
};

// The products are pre-activations, of which A makes hidden units.
template <class A, class... Stores>
struct Activate {
  static constexpr int kParts = A::kParts, kPreParts = 0;
  static constexpr bool kColumns = (Stores::kColumns || ...);

  template <class L>
  struct OfTile {
    const WarpTile<L>& at;
    ProductWeights<L> weights;

    __device__ explicit OfTile(const WarpTile<L>& tile) : at(tile), weights(tile) {}
    __device__ void start(Sums (&)[kProducts]) const {}
    __device__ void finish(Sums (&total)[kProducts]) const {
#pragma unroll
      for (int product = 0; product < L::kRowProducts; ++product) {
        const int row = product * kProductRows + at.warp * kWarpRows;
        store({.p = at.p,
               .row = at.first_row + row,
               .col = at.tile.col,
               .num_rows = at.num_rows - row,
               .staged = at.staged},
              total + product * kParts, weights.of[product]);
      }
      if constexpr (kColumns) {
        const auto words = [&](int product) { return PairWords{total[product * kParts]}; };
        (Stores::template tile<L>(at, words), ...);
      }
    }

   private:
    // The first part becomes h in words, if they are wanted.
    __device__ static void store(const StoredRows& rows, Sums* parts, const RowWeights& weights) {
      (Stores::template pre<kParts>(rows, parts), ...);
#pragma unroll
      for (int part = 0; part < kParts; ++part) pack_words(parts[part], rows.num_rows);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        (Stores::pre_words(rows, PairWords{parts[part]}, part), ...);
      }
      const auto rounded = [](float x) { return to_float(from_float<__nv_bfloat16>(x)); };
      Sums& h = parts[0];
#pragma unroll
      for (int j = 0; j < kFp8Octets; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float weight = half == 0 ? weights.upper : weights.lower;
          float low[kParts], high[kParts];
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            const uint32_t pair = PairWords{parts[part]}.at(j, half, 0);
            low[part] = low_bf16(pair), high[part] = high_bf16(pair);
          }
          h[PairWords::place(j, half, 0)] = rounded(A::template forward<__nv_bfloat16>(low) * weight);
          h[PairWords::place(j, half, 1)] = rounded(A::template forward<__nv_bfloat16>(high) * weight);
        }
      }
      (Stores::hidden(rows, h), ...);
      if (!(Stores::wants_words(rows.p) || ...)) return;
      const PairWords words = pack_words(h, rows.num_rows);
      (Stores::words(rows, words), ...);
    }
  };
};

// Where pre-activations are read for their gradients: in BF16, or as codes.
struct PreInRows {
  template <int kParts>
  using Rows = PreRows<kParts>;
  // What a lane asks for ahead.
  template <class L>
  struct Ahead {
    __device__ explicit Ahead(const WarpTile<L>&) {}
  };
  template <class L>
  __device__ static auto rows_of(const WarpTile<L>& at, const Ahead<L>&, int product, __nv_bfloat16* dpre) {
    constexpr int kParts = L::Epilogue::kPreParts;
    const int row = product * kProductRows + at.warp * kWarpRows;
    const int64_t offset = (at.first_row + row) * kParts * at.p.width + at.tile.col;
    return PreRows<kParts>{.pre = at.p.pre + offset,
                           .dpre = dpre == nullptr ? nullptr : dpre + offset,
                           .hidden_width = at.p.width,
                           .num_rows = at.num_rows - row,
                           .num_cols = kTileCols,
                           .staged = at.staged};
  }
};
struct PreInCodes {
  template <int kParts>
  using Rows = PreCodes<kParts>;
  template <class L>
  struct Ahead {
    unsigned lane_scales[L::kRowProducts] = {};
    __device__ explicit Ahead(const WarpTile<L>& at) {
      constexpr int kParts = L::Epilogue::kPreParts;
      const int across = at.p.width / kTileCols;
#pragma unroll
      for (int product = 0; product < L::kRowProducts; ++product) {
        const int row = product * kProductRows + at.warp * kWarpRows;
        lane_scales[product] = PreCodes<kParts>::load_scale(
            at.p.pre_codes.scales + (at.first_row + row) * kParts * across + at.tile.col / kTileCols, across,
            at.num_rows - row);
      }
    }
  };
  template <class L>
  __device__ static auto rows_of(const WarpTile<L>& at, const Ahead<L>& ahead, int product, __nv_bfloat16* /*dpre*/) {
    constexpr int kParts = L::Epilogue::kPreParts;
    const int row = product * kProductRows + at.warp * kWarpRows;
    const int64_t offset = (at.first_row + row) * kParts * at.p.width + at.tile.col;
    return PreCodes<kParts>{.codes = at.p.pre_codes.values + offset,
                            .hidden_width = at.p.width,
                            .num_rows = at.num_rows - row,
                            .lane_scale = ahead.lane_scales[product],
                            .staged = at.staged};
  }
};

// The products are the gradients of what A made: dpre and, if they are wanted, its codes.
template <class A>
struct ActivateBackward {
  static constexpr int kParts = 1, kPreParts = A::kParts;
  static constexpr bool kColumns = false;

  template <class L>
  struct OfTile {
    const WarpTile<L>& at;
    ProductWeights<L> weights;

    __device__ explicit OfTile(const WarpTile<L>& tile) : at(tile), weights(tile) {}
    __device__ PreRows<kPreParts> rows_of(int product) const {
      return PreInRows::rows_of<L>(at, PreInRows::Ahead<L>(at), product, at.p.y);
    }
    __device__ void start(Sums (&)[kProducts]) const {
      rows_of(0).fetch(0);
      rows_of(0).fetch(1);
    }
    __device__ void finish(Sums (&total)[kProducts]) const {
      const Product& p = at.p;
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        const PreRows<kPreParts> rows = rows_of(product);
        if (product > 0) {
          __syncwarp();  // the staging of the one before is free
          rows.fetch(0);
          rows.fetch(1);
        }
        const int64_t row = at.first_row + product * kProductRows + at.warp * kWarpRows;
        store_activation_gradients<A, kTileCols>(
            total[product], weights.of[product], rows,
            p.row_sums + static_cast<int64_t>(at.tile.col / kTileCols) * p.capacity + row);
        if (p.codes.values != nullptr) store_gradient_codes(p, rows, row, at.tile.col);
      }
      __syncwarp();
    }
  };
};

// The same as codes of rows and of columns alone. Pre: PreInRows or PreInCodes.
template <class A, class Pre>
struct ActivateBackwardToCodes {
  static constexpr int kParts = 1, kPreParts = A::kParts;
  static constexpr bool kColumns = true;
  using Rows = typename Pre::template Rows<kPreParts>;
  static_assert(Rows::kWarpBytes <= PreRows<kPreParts>::kWarpBytes);

  template <class L>
  struct OfTile {
    const WarpTile<L>& at;
    ProductWeights<L> weights;
    typename Pre::template Ahead<L> ahead;

    __device__ explicit OfTile(const WarpTile<L>& tile) : at(tile), weights(tile), ahead(tile) {}
    __device__ Rows rows_of(int product) const {
      return Pre::template rows_of<L>(at, ahead, product, /*dpre=*/nullptr);
    }
    __device__ void start(Sums (&)[kProducts]) const {
      rows_of(0).fetch(0);
      rows_of(0).fetch(1);
    }
    __device__ void finish(Sums (&total)[kProducts]) const {
      const Product& p = at.p;
      float* const row_sums = p.row_sums + static_cast<int64_t>(at.tile.col / kTileCols) * p.capacity;
      const Rows rows[] = {rows_of(0), rows_of(1)};
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        const int64_t row = at.first_row + product * kProductRows + at.warp * kWarpRows;
        pack_activation_gradients<A>(total[product], weights.of[product], rows[product],
                                     product == 0 ? &rows[1] : nullptr, row_sums + row);
      }
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        const int64_t row = at.first_row + product * kProductRows + at.warp * kWarpRows;
#pragma unroll
        for (int part = 0; part < kPreParts; ++part) {
          const int64_t col = part * static_cast<int64_t>(p.width) + at.tile.col;
          store_row_codes({total[product]}, part, p.codes, row, col, rows[product].num_rows, at.staged);
        }
      }
      store_columns(at, kPreParts, [&](int product) { return PairWords{total[product]}; });
    }
  };
};

}  // namespace nmoe::cuda::sm90::fp8
