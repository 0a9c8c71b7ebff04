// How the weights that every rank of a domain has are dealt out to the ranks for the update: each sums the gradients of
// its part, keeps the optimizer's state of that part alone, and gives the new values to the others (sharded optimizer
// state and gradients: ZeRO stage 2, arXiv 1910.02054).
//
// Weights lie one after the other in *regions*, in which each rank has one contiguous range, so that a region is summed
// and spread in one operation. Backward finishes gradients from the last weight to the first; regions are *buckets* of
// weights that it finishes about the same time, so that sums can begin while it goes on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/spec.h"
#include "tensor/chunks.h"

namespace nmoe {

struct FlatRegion {
  struct Place {
    size_t spec;    // index
    int64_t first;  // element of the region
  };
  std::vector<Place> places;
  DType values;
  size_t first_spec = 0;        // the lowest of places'
  int64_t num_elements = 0;     // with what lies between weights, which begin where an arena would let them
  std::vector<int64_t> bounds;  // [W + 1]: rank r updates elements [bounds[r], bounds[r + 1])

  ElementRange part(int64_t rank) const;
  // What of a weight, in its own elements, of which it has `size`, the rank updates.
  ElementRange part_of(const Place& place, int64_t size, int64_t rank) const;
};

// The regions of the trained weights among `specs`, in definition order, that are no stacked experts. Weights of the
// groups `by_matrix` go to a rank whole, dealt by what Newton-Schulz costs; all others are cut at the edges of chunks
// of `stat`, so that what a rank has in all regions is as much as any other's, as far as these allow. Values are
// `compute`, or `stat` where the weight says so: those are few, and one region. A bucket of the others has at least
// `bucket_bytes` of gradients, but for the first weights'.
std::vector<FlatRegion> deal_weights(std::span<const WeightSpec> specs, std::span<const WeightGroup> by_matrix,
                                     int64_t num_ranks, int64_t bucket_bytes, DType compute, DType stat);

}  // namespace nmoe
