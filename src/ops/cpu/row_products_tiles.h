// What row_products.cpp and row_products_avx512.cpp compile, each for the vectors V of its instruction set. Everything
// is local to the file that includes it, and nothing of the standard library is called: code for one instruction set
// must not be linked into the other's callers.
//
// Both products work on tiles of a few rows whose sums stay in registers. An element's sum is made in the same lanes
// and the same order in every tile, whatever the tile's height; ends of rows are loaded with zeros behind them.
//
// V has Real, Type, Mask, Quad (four values), kLanes, kTileRows (rows of a that a tile of dot_rows holds) and the
// operations used below.
#pragma once

#include <cstdint>

#include "ops/cpu/rows.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// c[0 ... min(count, 4)) = or += alpha * sums.
template <class V, class Real = typename V::Real>
[[gnu::always_inline]] inline void add_quad(Real alpha, typename V::Quad sums, Real* c, int64_t count,
                                            bool accumulate) {
  if (count >= 4) {
    V::store_quad(c, V::scale_quad(alpha, sums, accumulate ? V::load_quad(c) : V::zero_quad()));
    return;
  }
  Real quad[4] = {};
  for (int64_t j = 0; j < count && accumulate; ++j) quad[j] = c[j];
  V::store_quad(quad, V::scale_quad(alpha, sums, V::load_quad(quad)));
  for (int64_t j = 0; j < count; ++j) c[j] = quad[j];
}

// Loops over a tile are unrolled, for sums that are indexed at run time live in memory.
//
// One tile: `height` rows of a against `width` rows of b, of which `columns` are written. width is a multiple of 4.
template <class V, int height, int width, class Real = typename V::Real>
[[gnu::always_inline]] inline void dot_tile(int64_t depth, Real alpha, const Real* const* a, const Real* const* b,
                                            Real* const* c, int64_t columns, bool accumulate) {
  typename V::Type sums[height][width];
#pragma GCC unroll 8
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) sums[i][j] = V::zero();
  }
  int64_t k = 0;
  for (; k + V::kLanes <= depth; k += V::kLanes) {
    typename V::Type right[width];
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) right[j] = V::load(b[j] + k);
#pragma GCC unroll 8
    for (int i = 0; i < height; ++i) {
      const typename V::Type left = V::load(a[i] + k);
#pragma GCC unroll 8
      for (int j = 0; j < width; ++j) sums[i][j] = V::multiply_add(left, right[j], sums[i][j]);
    }
  }
  if (k < depth) {
    const typename V::Mask mask = V::first(depth - k);
    typename V::Type right[width];
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) right[j] = V::load(b[j] + k, mask);
#pragma GCC unroll 8
    for (int i = 0; i < height; ++i) {
      const typename V::Type left = V::load(a[i] + k, mask);
#pragma GCC unroll 8
      for (int j = 0; j < width; ++j) sums[i][j] = V::multiply_add(left, right[j], sums[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < width; j += 4) {
      add_quad<V>(alpha, V::sum_lanes(sums[i] + j), c[i] + j, columns - j, accumulate);
    }
  }
}

// Rows [i, i + height) of a against rows [begin, end) of b.
template <class V, int height, class Real = typename V::Real>
void dot_strip(int64_t i, int64_t begin, int64_t end, int64_t depth, Real alpha, Rows<const Real> a, Rows<const Real> b,
               Rows<Real> c, bool accumulate) {
  constexpr int kWidth = height == 1 ? 8 : 4;  // enough sums to hide the latency of additions
  const Real* left[height];
  for (int row = 0; row < height; ++row) left[row] = a[i + row];
  for (int64_t j = begin; j < end; j += kWidth) {
    const Real* right[kWidth];
    Real* out[height];
    for (int column = 0; column < kWidth; ++column) right[column] = b[least(j + column, end - 1)];
    for (int row = 0; row < height; ++row) out[row] = c[i + row] + j;
    dot_tile<V, height, kWidth>(depth, alpha, left, right, out, least(kWidth, end - j), accumulate);
  }
}

template <class V, class Real = typename V::Real>
void dot_rows_of(int64_t m, int64_t n, int64_t depth, Real alpha, Rows<const Real> a, Rows<const Real> b, Rows<Real> c,
                 bool accumulate) {
  // Rows of b that stay in the first-level cache while all rows of a pass by.
  constexpr int64_t kBlockBytes = 16 << 10, kLeastRows = 8;
  const int64_t row_bytes = (depth < 1 ? 1 : depth) * static_cast<int64_t>(sizeof(Real));
  const int64_t fitting = kBlockBytes / row_bytes / kLeastRows * kLeastRows;
  const int64_t block = fitting < kLeastRows ? kLeastRows : fitting;
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t end = least(begin + block, n);
    for (int64_t i = 0; i < m; i += V::kTileRows) {
      switch (least(V::kTileRows, m - i)) {
        case 1:
          dot_strip<V, 1>(i, begin, end, depth, alpha, a, b, c, accumulate);
          break;
        case 2:
          dot_strip<V, 2>(i, begin, end, depth, alpha, a, b, c, accumulate);
          break;
        case 3:
          dot_strip<V, 3>(i, begin, end, depth, alpha, a, b, c, accumulate);
          break;
        default:
          dot_strip<V, 4>(i, begin, end, depth, alpha, a, b, c, accumulate);
      }
    }
  }
}

constexpr int64_t kTileVectors = 2;  // of combine_rows

// One tile: `height` rows of c, `width` <= kTileVectors * kLanes columns.
template <class V, int height, class Real = typename V::Real>
void combine_tile(int64_t depth, Rows<const Real> a, Rows<const Real> b, Rows<Real> c, int64_t width) {
  typename V::Type sums[height][kTileVectors];
  for (int i = 0; i < height; ++i) {
    for (int v = 0; v < kTileVectors; ++v) sums[i][v] = V::zero();
  }
  if (width == kTileVectors * V::kLanes) {
    for (int64_t j = 0; j < depth; ++j) {
      typename V::Type right[kTileVectors];
      for (int v = 0; v < kTileVectors; ++v) right[v] = V::load(b[j] + v * V::kLanes);
      for (int i = 0; i < height; ++i) {
        const typename V::Type left = V::broadcast(a[i] + j);
        for (int v = 0; v < kTileVectors; ++v) sums[i][v] = V::multiply_add(left, right[v], sums[i][v]);
      }
    }
    for (int i = 0; i < height; ++i) {
      for (int v = 0; v < kTileVectors; ++v) V::store(c[i] + v * V::kLanes, sums[i][v]);
    }
    return;
  }
  const typename V::Mask masks[kTileVectors] = {V::first(width), V::first(width - V::kLanes)};
  for (int64_t j = 0; j < depth; ++j) {
    typename V::Type right[kTileVectors];
    for (int v = 0; v < kTileVectors; ++v) right[v] = V::load(b[j] + v * V::kLanes, masks[v]);
    for (int i = 0; i < height; ++i) {
      const typename V::Type left = V::broadcast(a[i] + j);
      for (int v = 0; v < kTileVectors; ++v) sums[i][v] = V::multiply_add(left, right[v], sums[i][v]);
    }
  }
  for (int i = 0; i < height; ++i) {
    for (int v = 0; v < kTileVectors; ++v) V::store(c[i] + v * V::kLanes, masks[v], sums[i][v]);
  }
}

template <class V, class Real = typename V::Real>
void combine_rows_of(int64_t m, int64_t n, int64_t depth, Rows<const Real> a, Rows<const Real> b, Rows<Real> c) {
  constexpr int64_t kTileRows = 4, kTileWidth = kTileVectors * V::kLanes;
  for (int64_t i = 0; i < m; i += kTileRows) {
    const Rows<const Real> left{a[i], a.stride};
    for (int64_t j = 0; j < n; j += kTileWidth) {
      const int64_t width = least(kTileWidth, n - j);
      const Rows<const Real> right{b.data + j, b.stride};
      const Rows<Real> out{c[i] + j, c.stride};
      switch (least(kTileRows, m - i)) {
        case 1:
          combine_tile<V, 1>(depth, left, right, out, width);
          break;
        case 2:
          combine_tile<V, 2>(depth, left, right, out, width);
          break;
        case 3:
          combine_tile<V, 3>(depth, left, right, out, width);
          break;
        default:
          combine_tile<V, 4>(depth, left, right, out, width);
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::cpu
