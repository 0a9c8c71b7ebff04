// What gemm.cpp and gemm_avx512.cpp compile, each for the vectors V of its instruction set. Everything is local to the
// file that includes it, and nothing of the standard library is called: code for one instruction set must not be linked
// into the other's callers.
//
// A tile of c, up to V::kGemmRows by two vectors, stays in registers while it adds up a block of the reduction. What it
// reads was copied to panels, so that it lies together whatever the strides are (Goto and van de Geijn, Anatomy of
// high-performance matrix multiplication, 2008): all of b for some hundred columns, which stays in the second-level
// cache, and of a for a few tiles, of which one stays in the first while it meets every panel of b.
#pragma once

#include <cstdint>
#include <utility>

#include "ops/cpu/gemm_kernels.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t pieces_of(int64_t size, int64_t most) { return (size + most - 1) / most; }
constexpr int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
// The first of the fewest pieces of at most `most` that `size` can be cut into about evenly, in multiples of `unit`.
constexpr int64_t even_piece(int64_t size, int64_t most, int64_t unit) {
  return at_most(size, pieces_of(pieces_of(size, pieces_of(size, most)), unit) * unit);
}

template <class V>
constexpr int64_t kTileColumns = 2 * V::kLanes;

// Copies `depth` lines of `width` <= kTileColumns elements, which begin `stride` apart, to lines of kTileColumns that
// end in zeros.
template <class V>
void copy_lines(const float* from, int64_t stride, int64_t depth, int64_t width, float* to) {
  const typename V::Mask first = V::first(width), second = V::first(width - V::kLanes);
  const bool whole = width == kTileColumns<V>;
  for (int64_t k = 0; k < depth; ++k) {
    V::store(to, whole ? V::load(from) : V::load(from, first));
    V::store(to + V::kLanes, whole ? V::load(from + V::kLanes) : V::load(from + V::kLanes, second));
    from += stride;
    to += kTileColumns<V>;
  }
}

// Copies `depth` lines of `rows` elements, which begin `stride` apart, to a panel of lines of kLanes for each tile of
// rows. All panels grow together, so that a line is read once.
template <class V>
void copy_tiles(const float* from, int64_t stride, int64_t depth, int64_t rows, float* to) {
  int64_t begin[kGemmTilesOfRows], num_tiles = 0;
  typename V::Mask mask[kGemmTilesOfRows];
  for (int64_t row = 0, height = 0; row < rows; row += height) {
    height = even_piece(rows - row, V::kGemmRows, 1);
    begin[num_tiles] = row;
    mask[num_tiles++] = V::first(height);
  }
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t i = 0; i < num_tiles; ++i) V::store(to + i * depth * V::kLanes, V::load(from + begin[i], mask[i]));
    from += stride;
    to += V::kLanes;
  }
}

// Copies `rows` rows of `length` elements to rows kGemmRowStride apart, with what it likes up to the next multiple of
// kLanes.
template <class V>
void copy_rows(const float* from, int64_t stride, int64_t rows, int64_t length, float* to) {
  const int64_t whole = length / V::kLanes * V::kLanes;
  const typename V::Mask rest = V::first(length - whole);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < whole; k += V::kLanes) V::store(to + k, V::load(from + k));
    if (whole < length) V::store(to + whole, V::load(from + whole, rest));
    from += stride;
    to += kGemmRowStride;
  }
}

// Copies the transpose of `count` <= kLanes rows of `length` elements: element k of all rows, and zeros behind them,
// to the kLanes elements at to + k * kTileColumns.
template <class V>
void copy_transpose(const float* from, int64_t stride, int64_t count, int64_t length, float* to) {
  for (int64_t k = 0; k < length; k += V::kLanes) {
    const int64_t steps = at_most(V::kLanes, length - k);
    typename V::Type block[V::kLanes];
    if (count == V::kLanes && steps == V::kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) block[i] = V::load(from + i * stride + k);
    } else {
      const typename V::Mask mask = V::first(steps);
      for (int i = 0; i < V::kLanes; ++i) block[i] = i < count ? V::load(from + i * stride + k, mask) : V::zero();
    }
    V::transpose(block);
    if (steps == V::kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) V::store(to + (k + i) * kTileColumns<V>, block[i]);
    } else {
      for (int i = 0; i < steps; ++i) V::store(to + (k + i) * kTileColumns<V>, block[i]);
    }
  }
}

// c = alpha * a b + beta * c, `height` rows and `columns` <= vectors * kLanes of them, over `depth` terms. a is as
// copy_rows leaves it (in_rows) or copy_tiles. Loops over a tile are unrolled, for sums that are indexed at run time
// live in memory.
template <class V, bool in_rows, int height, int vectors>
void multiply_tile(int64_t depth, const float* a, const float* b, float alpha, float beta, float* c, int64_t c_stride,
                   int64_t columns) {
  typename V::Type sums[height][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[i][v] = V::zero();
  }
  for (int64_t k = 0; k < depth; ++k) {
    typename V::Type right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) right[v] = V::load(b + v * V::kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < height; ++i) {
      const typename V::Type left = V::broadcast(a + (in_rows ? i * kGemmRowStride : i));
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[i][v] = V::multiply_add(left, right[v], sums[i][v]);
    }
    a += in_rows ? 1 : V::kLanes;
    b += kTileColumns<V>;
  }
  const typename V::Type factor = V::broadcast(&alpha), keep = V::broadcast(&beta);
  if (beta == 0 && columns == vectors * V::kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < height; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        V::store(c + i * c_stride + v * V::kLanes, V::multiply_add(factor, sums[i][v], V::zero()));
      }
    }
    return;
  }
  typename V::Mask masks[vectors];
#pragma GCC unroll 2
  for (int v = 0; v < vectors; ++v) masks[v] = V::first(columns - v * V::kLanes);
#pragma GCC unroll 16
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      float* const place = c + i * c_stride + v * V::kLanes;
      const typename V::Type old = beta == 0 ? V::zero() : V::multiply(keep, V::load(place, masks[v]));
      V::store(place, masks[v], V::multiply_add(factor, sums[i][v], old));
    }
  }
}

using TileFunction = void (*)(int64_t depth, const float* a, const float* b, float alpha, float beta, float* c,
                              int64_t c_stride, int64_t columns);

// multiply_tile for so many rows, and one vector or two.
template <class V, bool in_rows, int... heights>
TileFunction choose_tile(int64_t height, bool wide, std::integer_sequence<int, heights...>) {
  static constexpr TileFunction kTiles[][2] = {
      {multiply_tile<V, in_rows, heights + 1, 1>, multiply_tile<V, in_rows, heights + 1, 2>}...};
  return kTiles[height - 1][wide ? 1 : 0];
}

template <class V>
void gemm_of(float* scratch, int64_t m, int64_t n, int64_t k, float alpha, Operand<float> a, Operand<float> b,
             float beta, float* c, int64_t c_stride) {
  using Heights = std::make_integer_sequence<int, V::kGemmRows>;
  float* const a_panels = scratch;
  float* const b_panels = scratch + kGemmMostRows * kGemmRowStride;
  const bool in_rows = a.transpose == Transpose::kNo;
  int64_t columns = 0, depth = 0, rows = 0, height = 0;
  for (int64_t j0 = 0; j0 < n; j0 += columns) {
    columns = even_piece(n - j0, kGemmBlockColumns, kTileColumns<V>);
    for (int64_t k0 = 0; k0 < k; k0 += depth) {
      depth = product_piece(k - k0);
      for (int64_t j = 0; j < columns; j += kTileColumns<V>) {
        const int64_t width = at_most(kTileColumns<V>, columns - j);
        if (b.transpose == Transpose::kNo) {
          copy_lines<V>(b.data + k0 * b.stride + j0 + j, b.stride, depth, width, b_panels + j * depth);
          continue;
        }
        for (int64_t v = 0; v < width; v += V::kLanes) {
          copy_transpose<V>(b.data + (j0 + j + v) * b.stride + k0, b.stride, at_most(V::kLanes, width - v), depth,
                            b_panels + j * depth + v);
        }
      }
      const float keep = k0 == 0 ? beta : 1;
      for (int64_t i0 = 0; i0 < m; i0 += rows) {
        rows = even_piece(m - i0, kGemmTilesOfRows * V::kGemmRows, 1);
        if (in_rows) {
          copy_rows<V>(a.data + i0 * a.stride + k0, a.stride, rows, depth, a_panels);
        } else {
          copy_tiles<V>(a.data + k0 * a.stride + i0, a.stride, depth, rows, a_panels);
        }
        const float* a_panel = a_panels;
        for (int64_t i = 0; i < rows; i += height) {
          height = even_piece(rows - i, V::kGemmRows, 1);
          for (int64_t j = 0; j < columns; j += kTileColumns<V>) {
            const int64_t width = at_most(kTileColumns<V>, columns - j);
            const bool wide = width > V::kLanes;
            const TileFunction multiply = in_rows ? choose_tile<V, true>(height, wide, Heights())
                                                  : choose_tile<V, false>(height, wide, Heights());
            multiply(depth, a_panel, b_panels + j * depth, alpha, keep, c + (i0 + i) * c_stride + j0 + j, c_stride,
                     width);
          }
          a_panel += in_rows ? height * kGemmRowStride : depth * V::kLanes;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::cpu
