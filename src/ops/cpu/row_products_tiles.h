// What row_products.cpp and row_products_avx512.cpp compile, each for the vectors V of its instruction set. Everything
// is local to the file that includes it, and nothing of the standard library is called: code for one instruction set
// must not be linked into the other's callers.
//
// Both products work on tiles of a few rows whose sums stay in registers. An element's sum has a lane of its own, in
// which it is made from the first term to the last.
//
// V has Real, Type, Mask, kLanes, kTileRows (rows of a that a tile of dot_rows holds) and the operations used below.
#pragma once

#include <cstdint>

#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/rows.h"

namespace nmoe::cpu {
namespace {

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Loops over a tile are unrolled, for sums that are indexed at run time live in memory.
//
// One tile: `height` rows of a against `vectors` vectors of rows of b, of which `columns` are written. b has pointers
// to vectors * kLanes rows. Blocks of b are transposed on their way, so that a vector has one k of many rows.
template <class V, int height, int vectors, class Real = typename V::Real>
[[gnu::always_inline]] inline void dot_tile(int64_t depth, Real alpha, const Real* const* a, const Real* const* b,
                                            Real* const* c, int64_t columns, bool accumulate) {
  typename V::Type sums[height][vectors];
#pragma GCC unroll 8
  for (int i = 0; i < height; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[i][v] = V::zero();
  }
  int64_t k = 0;
  for (; k + V::kLanes <= depth; k += V::kLanes) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      typename V::Type right[V::kLanes];
#pragma GCC unroll 16
      for (int j = 0; j < V::kLanes; ++j) right[j] = V::load(b[v * V::kLanes + j] + k);
      V::transpose(right);
#pragma GCC unroll 16
      for (int j = 0; j < V::kLanes; ++j) {
#pragma GCC unroll 8
        for (int i = 0; i < height; ++i) {
          sums[i][v] = V::multiply_add(V::broadcast(a[i] + k + j), right[j], sums[i][v]);
        }
      }
    }
  }
  if (k < depth) {
    const typename V::Mask mask = V::first(depth - k);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      typename V::Type right[V::kLanes];
#pragma GCC unroll 16
      for (int j = 0; j < V::kLanes; ++j) right[j] = V::load(b[v * V::kLanes + j] + k, mask);
      V::transpose(right);
      for (int64_t j = 0; j < depth - k; ++j) {
#pragma GCC unroll 8
        for (int i = 0; i < height; ++i) {
          sums[i][v] = V::multiply_add(V::broadcast(a[i] + k + j), right[j], sums[i][v]);
        }
      }
    }
  }
  const typename V::Type factor = V::broadcast(&alpha);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    const typename V::Mask mask = V::first(columns - v * V::kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < height; ++i) {
      Real* const place = c[i] + v * V::kLanes;
      const typename V::Type old = accumulate ? V::load(place, mask) : V::zero();
      V::store(place, mask, V::multiply_add(factor, sums[i][v], old));
    }
  }
}

// Rows [i, i + height) of a against rows [begin, end) of b, of which there are at most `vectors` vectors.
template <class V, int height, int vectors, class Real = typename V::Real>
void dot_columns(int64_t i, int64_t begin, int64_t end, int64_t depth, Real alpha, Rows<const Real> a,
                 Rows<const Real> b, Rows<Real> c, bool accumulate) {
  constexpr int64_t kWidth = vectors * V::kLanes;
  const Real* left[height];
  const Real* right[kWidth];
  Real* out[height];
  for (int row = 0; row < height; ++row) out[row] = c[i + row] + begin;
  for (int64_t k = 0, piece = 0; k < depth || k == 0; k += piece) {
    piece = product_piece(depth - k);
    for (int row = 0; row < height; ++row) left[row] = a[i + row] + k;
    for (int64_t column = 0; column < kWidth; ++column) right[column] = b[least(begin + column, end - 1)] + k;
    dot_tile<V, height, vectors>(piece, alpha, left, right, out, end - begin, accumulate || k > 0);
    if (piece == 0) break;
  }
}

// The same for any number.
template <class V, int height, class Real = typename V::Real>
void dot_strip(int64_t i, int64_t begin, int64_t end, int64_t depth, Real alpha, Rows<const Real> a, Rows<const Real> b,
               Rows<Real> c, bool accumulate) {
  constexpr int kVectors = height == 1 ? 4 : 2;  // enough sums to hide the latency of additions
  constexpr int64_t kWidth = kVectors * V::kLanes;
  for (; begin + kWidth <= end; begin += kWidth) {
    dot_columns<V, height, kVectors>(i, begin, begin + kWidth, depth, alpha, a, b, c, accumulate);
  }
  for (; begin < end; begin += V::kLanes) {
    dot_columns<V, height, 1>(i, begin, least(begin + V::kLanes, end), depth, alpha, a, b, c, accumulate);
  }
}

template <class V, class Real = typename V::Real>
void dot_rows_of(int64_t m, int64_t n, int64_t depth, Real alpha, Rows<const Real> a, Rows<const Real> b, Rows<Real> c,
                 bool accumulate) {
  // Rows of b that stay in the first-level cache while all rows of a pass by.
  constexpr int64_t kBlockBytes = 16 << 10, kLeastRows = 4 * V::kLanes;
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
void combine_tile(int64_t depth, Rows<const Real> a, Rows<const Real> b, Rows<Real> c, int64_t width, bool goes_on) {
  const typename V::Mask masks[kTileVectors] = {V::first(width), V::first(width - V::kLanes)};
  typename V::Type sums[height][kTileVectors];
  for (int i = 0; i < height; ++i) {
    for (int v = 0; v < kTileVectors; ++v) sums[i][v] = goes_on ? V::load(c[i] + v * V::kLanes, masks[v]) : V::zero();
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
void combine_rows_of(int64_t m, int64_t n, int64_t depth, Rows<const Real> a, Rows<const Real> b, Rows<Real> c,
                     bool goes_on) {
  constexpr int64_t kTileRows = 4, kTileWidth = kTileVectors * V::kLanes;
  for (int64_t i = 0; i < m; i += kTileRows) {
    const Rows<const Real> left{a[i], a.stride};
    for (int64_t j = 0; j < n; j += kTileWidth) {
      const int64_t width = least(kTileWidth, n - j);
      const Rows<const Real> right{b.data + j, b.stride};
      const Rows<Real> out{c[i] + j, c.stride};
      switch (least(kTileRows, m - i)) {
        case 1:
          combine_tile<V, 1>(depth, left, right, out, width, goes_on);
          break;
        case 2:
          combine_tile<V, 2>(depth, left, right, out, width, goes_on);
          break;
        case 3:
          combine_tile<V, 3>(depth, left, right, out, width, goes_on);
          break;
        default:
          combine_tile<V, 4>(depth, left, right, out, width, goes_on);
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::cpu
