// Both products work on tiles of a few rows whose sums stay in registers. An element's sum is made in the same lanes
// and the same order in every tile, whatever the tile's height; ends of rows are loaded with zeros behind them.
#include "ops/cpu/row_products.h"

#include <immintrin.h>

#include <algorithm>

namespace nmoe::cpu {
namespace {

template <class Real>
struct Vector;

template <>
struct Vector<float> {
  using Type = __m256;
  using Mask = __m256i;
  static constexpr int64_t kLanes = 8;

  static Type zero() { return _mm256_setzero_ps(); }
  static Type broadcast(const float* x) { return _mm256_broadcast_ss(x); }
  static Type load(const float* x) { return _mm256_loadu_ps(x); }
  static Type load(const float* x, Mask mask) { return _mm256_maskload_ps(x, mask); }
  static void store(float* x, Type v) { _mm256_storeu_ps(x, v); }
  static void store(float* x, Mask mask, Type v) { _mm256_maskstore_ps(x, mask, v); }
  static Type multiply_add(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
  // The first `count` lanes.
  static Mask first(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  // sums[i] = the sum of v[i]'s lanes.
  static void sum_lanes(const Type (&v)[4], float* sums) {
    const __m256 quarters =
        _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));  // of each half of the lanes
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(quarters), _mm256_extractf128_ps(quarters, 1)));
  }
};

template <>
struct Vector<double> {
  using Type = __m256d;
  using Mask = __m256i;
  static constexpr int64_t kLanes = 4;

  static Type zero() { return _mm256_setzero_pd(); }
  static Type broadcast(const double* x) { return _mm256_broadcast_sd(x); }
  static Type load(const double* x) { return _mm256_loadu_pd(x); }
  static Type load(const double* x, Mask mask) { return _mm256_maskload_pd(x, mask); }
  static void store(double* x, Type v) { _mm256_storeu_pd(x, v); }
  static void store(double* x, Mask mask, Type v) { _mm256_maskstore_pd(x, mask, v); }
  static Type multiply_add(Type a, Type b, Type c) { return _mm256_fmadd_pd(a, b, c); }
  static Mask first(int64_t count) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
  }
  static void sum_lanes(const Type (&v)[4], double* sums) {
    for (int i = 0; i < 4; i += 2) {
      const __m256d halves = _mm256_hadd_pd(v[i], v[i + 1]);
      _mm_storeu_pd(sums + i, _mm_add_pd(_mm256_castpd256_pd128(halves), _mm256_extractf128_pd(halves, 1)));
    }
  }
};

constexpr int64_t kTileColumns = 4;  // of dot_rows

// One tile: `height` rows of a against kTileColumns rows of b, of which `columns` are written.
template <class Real, int height>
void dot_tile(int64_t depth, Real alpha, const Real* const* a, const Real* const* b, Real* const* c, int64_t columns,
              bool accumulate) {
  using V = Vector<Real>;
  typename V::Type sums[height][kTileColumns];
  for (auto& row : sums) std::fill(row, row + kTileColumns, V::zero());
  int64_t k = 0;
  for (; k + V::kLanes <= depth; k += V::kLanes) {
    typename V::Type right[kTileColumns];
    for (int j = 0; j < kTileColumns; ++j) right[j] = V::load(b[j] + k);
    for (int i = 0; i < height; ++i) {
      const typename V::Type left = V::load(a[i] + k);
      for (int j = 0; j < kTileColumns; ++j) sums[i][j] = V::multiply_add(left, right[j], sums[i][j]);
    }
  }
  if (k < depth) {
    const typename V::Mask mask = V::first(depth - k);
    typename V::Type right[kTileColumns];
    for (int j = 0; j < kTileColumns; ++j) right[j] = V::load(b[j] + k, mask);
    for (int i = 0; i < height; ++i) {
      const typename V::Type left = V::load(a[i] + k, mask);
      for (int j = 0; j < kTileColumns; ++j) sums[i][j] = V::multiply_add(left, right[j], sums[i][j]);
    }
  }
  for (int i = 0; i < height; ++i) {
    Real products[kTileColumns];
    V::sum_lanes(sums[i], products);
    for (int64_t j = 0; j < columns; ++j) c[i][j] = alpha * products[j] + (accumulate ? c[i][j] : Real{0});
  }
}

constexpr int64_t kTileVectors = 2;  // of combine_rows

// One tile: `height` rows of c, `width` <= kTileVectors * kLanes columns.
template <class Real, int height>
void combine_tile(int64_t depth, Rows<const Real> a, Rows<const Real> b, Rows<Real> c, int64_t width) {
  using V = Vector<Real>;
  typename V::Type sums[height][kTileVectors];
  for (auto& row : sums) std::fill(row, row + kTileVectors, V::zero());
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
    for (int i = 0; i < height; ++i) {
      const typename V::Type left = V::broadcast(a[i] + j);
      for (int v = 0; v < kTileVectors; ++v) {
        sums[i][v] = V::multiply_add(left, V::load(b[j] + v * V::kLanes, masks[v]), sums[i][v]);
      }
    }
  }
  for (int i = 0; i < height; ++i) {
    for (int v = 0; v < kTileVectors; ++v) V::store(c[i] + v * V::kLanes, masks[v], sums[i][v]);
  }
}

}  // namespace

template <class Real>
void dot_rows(int64_t m, int64_t n, int64_t depth, Real alpha, Rows<const Real> a, Rows<const Real> b, Rows<Real> c,
              bool accumulate) {
  constexpr int64_t kTileRows = 3;
  // Rows of b that stay in the first-level cache while all rows of a pass by.
  constexpr int64_t kBlockBytes = 16 << 10;
  const int64_t row_bytes = std::max<int64_t>(1, depth) * static_cast<int64_t>(sizeof(Real));
  const int64_t block = std::max(kTileColumns, kBlockBytes / row_bytes / kTileColumns * kTileColumns);
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t end = std::min(begin + block, n);
    for (int64_t i = 0; i < m; i += kTileRows) {
      const int64_t height = std::min(kTileRows, m - i);
      const Real* left[kTileRows];
      for (int64_t row = 0; row < kTileRows; ++row) left[row] = a[std::min(i + row, m - 1)];
      for (int64_t j = begin; j < end; j += kTileColumns) {
        const Real* right[kTileColumns];
        Real* out[kTileRows];
        for (int64_t column = 0; column < kTileColumns; ++column) right[column] = b[std::min(j + column, end - 1)];
        for (int64_t row = 0; row < kTileRows; ++row) out[row] = c[std::min(i + row, m - 1)] + j;
        const int64_t columns = std::min(kTileColumns, end - j);
        if (height == 1) {
          dot_tile<Real, 1>(depth, alpha, left, right, out, columns, accumulate);
        } else if (height == 2) {
          dot_tile<Real, 2>(depth, alpha, left, right, out, columns, accumulate);
        } else {
          dot_tile<Real, 3>(depth, alpha, left, right, out, columns, accumulate);
        }
      }
    }
  }
}

template <class Real>
void combine_rows(int64_t m, int64_t n, int64_t depth, Rows<const Real> a, Rows<const Real> b, Rows<Real> c) {
  constexpr int64_t kTileRows = 4, kTileWidth = kTileVectors * Vector<Real>::kLanes;
  for (int64_t i = 0; i < m; i += kTileRows) {
    const Rows<const Real> left{a[i], a.stride};
    for (int64_t j = 0; j < n; j += kTileWidth) {
      const int64_t width = std::min(kTileWidth, n - j);
      const Rows<const Real> right{b.data + j, b.stride};
      const Rows<Real> out{c[i] + j, c.stride};
      switch (std::min(kTileRows, m - i)) {
        case 1:
          combine_tile<Real, 1>(depth, left, right, out, width);
          break;
        case 2:
          combine_tile<Real, 2>(depth, left, right, out, width);
          break;
        case 3:
          combine_tile<Real, 3>(depth, left, right, out, width);
          break;
        default:
          combine_tile<Real, 4>(depth, left, right, out, width);
      }
    }
  }
}

#define NMOE_INSTANTIATE(Real)                                                                                         \
  template void dot_rows<Real>(int64_t, int64_t, int64_t, Real, Rows<const Real>, Rows<const Real>, Rows<Real>, bool); \
  template void combine_rows<Real>(int64_t, int64_t, int64_t, Rows<const Real>, Rows<const Real>, Rows<Real>);
NMOE_INSTANTIATE(float)
NMOE_INSTANTIATE(double)
#undef NMOE_INSTANTIATE

}  // namespace nmoe::cpu
