// How a tensor of an optimizer's state lies beside its weight: it has an element for each of the weight's, or one for
// each block of them, as scales of codes are (ops/moment_codes.h).
//
// Blocks are counted from the weight's first element, or from each stacked expert's. Ranks cut weights between chunks
// (tensor/chunks.h) of the narrowest elements that they keep, of which blocks are divisors: no block lies on two ranks.
// So that what checkpoints cut of a tensor of blocks are whole chunks too, it is stacked: [E, 1, blocks of an expert],
// or, of a weight with several chunks, [chunks, 1, blocks of a chunk], the last of which is padded by zeros.
#pragma once

#include <cstdint>
#include <vector>

#include "model/spec/weights.h"
#include "model/weight_shard.h"
#include "tensor/chunks.h"

namespace nmoe {

struct StateLayout {
  int64_t block = 1;

  // Of a whole weight.
  Shape shape(const WeightSpec& weight) const;
  // What of that goes with some of the weight's elements: whole blocks, or what remains of it.
  ElementRange part(const WeightSpec& weight, ElementRange elements) const;
  // Of the elements that a rank updates: where they are in the whole, in the order in which it stores them, and its
  // tensor of them.
  std::vector<ElementRange> slices(const WeightSpec& weight, const WeightShard& shard) const;
  Shape shape_here(const WeightSpec& weight, const WeightShard& shard) const;
};

}  // namespace nmoe
