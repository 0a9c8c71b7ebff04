// What a row of generation sees of its slot of a cache.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cache_places.h"

namespace nmoe::cuda {

struct Seen {
  int64_t slot, begin, end;  // positions [begin, end); none where the row has no place in the cache

  __device__ bool exists() const { return end > 0; }
  __device__ int64_t position() const { return end - 1; }  // its own
};

// `window`: as in CachedAttention.
__device__ inline Seen seen_from(const CachePlaces& places, int64_t slot, int64_t position, int64_t window) {
  if (!places.has(slot, position)) return {0, 0, 0};
  return {slot, window == 0 ? 0 : max(int64_t{0}, position - window + 1), position + 1};
}
__device__ inline Seen seen_by(const CachePlaces& places, int64_t token, int64_t window) {
  return seen_from(places, places.slots[token], places.positions[token], window);
}
// The same as it stands before the work in front has ended, to prefetch by: not by L1, where it would stay.
__device__ inline Seen expected_of(const CachePlaces& places, int64_t token, int64_t window) {
  return seen_from(places, __ldcg(places.slots + token), __ldcg(places.positions + token), window);
}

}  // namespace nmoe::cuda
