// What a row of generation sees of its slot of a cache.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nmoe::cuda {

// Where rows are, in a cache of num_slots slots of `capacity` positions.
struct CachePlaces {
  const int32_t* slots;
  const int32_t* positions;
  int64_t num_slots, capacity;
};

struct Seen {
  int64_t slot, begin, end;  // positions [begin, end); none where the row has no place in the cache

  __device__ bool exists() const { return end > 0; }
  __device__ int64_t position() const { return end - 1; }  // its own
};

// `window`: as in CachedAttention.
__device__ inline Seen seen_by(const CachePlaces& places, int64_t token, int64_t window) {
  const int64_t slot = places.slots[token], position = places.positions[token];
  if (slot < 0 || slot >= places.num_slots || position < 0 || position >= places.capacity) return {0, 0, 0};
  return {slot, window == 0 ? 0 : max(int64_t{0}, position - window + 1), position + 1};
}

}  // namespace nmoe::cuda
