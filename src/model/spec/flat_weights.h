// Divides the update of weights that every rank of a domain has among these ranks: each sums the gradients of its part,
// keeps the optimizer's state of that part only, and sends the new values to the others (sharded gradients and
// optimizer state: ZeRO stage 2, arXiv 1910.02054).
//
// Weights are laid out one after the other in *regions*. In a region each rank owns one contiguous range, so that a
// region is summed, or gathered, by one operation. Backward completes gradients from the last weight to the first; a
// region is a *bucket* of weights whose gradients are complete at about the same time, so that sums overlap with the
// rest of backward.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/spec/weights.h"
#include "tensor/chunks.h"

namespace nmoe {

struct FlatRegion {
  struct Place {
    size_t spec;    // index
    int64_t first;  // its first element in the region
  };
  std::vector<Place> places;
  DType values;
  size_t first_spec = 0;  // the lowest index among places
  // With the padding between weights: each begins at an arena's alignment, or, if joined, where the one before ends.
  int64_t num_elements = 0;
  std::vector<int64_t> bounds;  // [W + 1]: rank r updates elements [bounds[r], bounds[r + 1])

  ElementRange part(int64_t rank) const;
  // The range of a weight's own elements, of which there are `size`, that the rank updates.
  ElementRange part_of(const Place& place, int64_t size, int64_t rank) const;
};

// The regions of the trained weights among `specs` that are not stacked experts, in definition order. A weight of the
// groups `by_matrix` goes to one rank as a whole, with those joined to it, balanced by the cost of Newton-Schulz; all
// others are cut at the bounds of chunks of `narrowest` (tensor/chunks.h), the narrowest elements that ranks keep of
// them, so that ranks own equal amounts over all regions, as far as these bounds allow. Values have the dtype
// `compute`, or `stat` where the weight says so: the latter are few and form one region. Every other region is a bucket
// of at least `bucket_bytes` of gradients, except the first weights'.
std::vector<FlatRegion> deal_weights(std::span<const WeightSpec> specs, std::span<const WeightGroup> by_matrix,
                                     int64_t num_ranks, int64_t bucket_bytes, DType compute, DType stat,
                                     DType narrowest);

}  // namespace nmoe
