// Where rows of generation lie in a cache of pages (contracts/cache.h), for host and device.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "ops/contracts/cache.h"

namespace nmoe {

struct CachePlaces {
  const int32_t* slots;      // [T]
  const int32_t* positions;  // [T]
  const int32_t* pages;      // [Z, B]
  int64_t num_slots, num_blocks;

  // Those of rows from `row` on.
  CachePlaces from(int64_t row) const { return {slots + row, positions + row, pages, num_slots, num_blocks}; }
  NMOE_HOST_DEVICE int64_t capacity() const { return num_blocks * kPagePositions; }
  NMOE_HOST_DEVICE bool has(int64_t slot, int64_t position) const {
    return slot >= 0 && slot < num_slots && position >= 0 && position < capacity();
  }
  // Of a place that there is.
  NMOE_HOST_DEVICE int32_t page_of(int64_t slot, int64_t position) const {
    return pages[slot * num_blocks + position / kPagePositions];
  }
  // The row of the cache, among those of all pages.
  NMOE_HOST_DEVICE int64_t row_of(int64_t slot, int64_t position) const {
    return row_in(page_of(slot, position), position);
  }
  NMOE_HOST_DEVICE static int64_t row_in(int32_t page, int64_t position) {
    return int64_t{page} * kPagePositions + position % kPagePositions;
  }
};

// Of an operation's arguments.
template <class Args>
CachePlaces places_of(const Args& args) {
  return {.slots = args.slots.template data<int32_t>(),
          .positions = args.positions.template data<int32_t>(),
          .pages = args.pages.template data<int32_t>(),
          .num_slots = args.pages.dim(0),
          .num_blocks = args.pages.dim(1)};
}

}  // namespace nmoe
