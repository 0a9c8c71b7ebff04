// Caches in pages (ops/contracts/cache.h) for tests, which have what is cached as [Z, C, width].
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cache_places.h"
#include "support/tensors.h"

namespace nmoe::test {

// How many of them there are, and which block of which slot lies where.
struct Pages {
  int64_t count = 0;
  Tensor table;  // [Z, B] i32
};

// Each slot's own, one slot behind the other.
inline Pages pages_in_order(TensorPool& pool, int64_t num_slots, int64_t capacity) {
  const int64_t blocks = std::max<int64_t>(1, (capacity + kPagePositions - 1) / kPagePositions);
  std::vector<double> table;
  for (int64_t i = 0; i < num_slots * blocks; ++i) table.push_back(static_cast<double>(i));
  return {.count = num_slots * blocks, .table = pool.ints({num_slots, blocks}, table)};
}
// The same anywhere among more of them.
inline Pages scattered_pages(TensorPool& pool, int64_t num_slots, int64_t capacity) {
  Pages pages = pages_in_order(pool, num_slots, capacity);
  const int64_t used = pages.count;
  for (pages.count = used + 3; pages.count % 5 == 0;) ++pages.count;
  for (int64_t i = 0; i < used; ++i) set(pages.table, i, static_cast<double>((i * 5 + 1) % pages.count));
  return pages;
}

// `dense` [Z, C, width] in pages, with `elsewhere` where it has nothing.
inline Tensor in_pages(TensorPool& pool, const Tensor& dense, const Pages& pages, double elsewhere = NAN) {
  const int64_t width = dense.dim(2), num_blocks = pages.table.dim(1);
  const Tensor cache = pool.full({pages.count, kPagePositions, width}, elsewhere);
  for (int64_t slot = 0; slot < dense.dim(0); ++slot) {
    for (int64_t position = 0; position < dense.dim(1); ++position) {
      const auto page = static_cast<int32_t>(get(pages.table, slot * num_blocks + position / kPagePositions));
      const int64_t row = CachePlaces::row_in(page, position);
      for (int64_t i = 0; i < width; ++i) {
        set(cache, row * width + i, get(dense, (slot * dense.dim(1) + position) * width + i));
      }
    }
  }
  return cache;
}

}  // namespace nmoe::test
