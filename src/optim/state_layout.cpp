#include "optim/state_layout.h"

namespace nmoe {
namespace {

constexpr DType kNarrowest = DType::kU8;

int64_t blocks_in(int64_t elements, int64_t block) { return (elements + block - 1) / block; }

// Elements after which blocks begin anew: of an expert, or of a chunk; 0: nowhere.
int64_t stacked_elements(const WeightSpec& weight) {
  const TensorChunks chunks(kNarrowest, weight.shape);
  return weight.per_expert || chunks.count() > 1 ? chunks.chunk_elements() : 0;
}

}  // namespace

Shape StateLayout::shape(const WeightSpec& weight) const {
  if (block == 1) return weight.shape;
  const int64_t size = weight.shape.num_elements(), stacked = stacked_elements(weight);
  if (stacked == 0) return {blocks_in(size, block)};
  return {blocks_in(size, stacked), 1, blocks_in(stacked, block)};
}

ElementRange StateLayout::part(const WeightSpec& weight, ElementRange elements) const {
  if (block == 1 || elements.extent == 0) return elements;
  const int64_t stacked = stacked_elements(weight);
  if (stacked == 0) {
    const int64_t begin = elements.offset / block;
    return {begin, blocks_in(elements.end(), block) - begin};
  }
  const int64_t of_stacked = blocks_in(stacked, block);
  return {elements.offset / stacked * of_stacked, blocks_in(elements.extent, stacked) * of_stacked};
}

std::vector<ElementRange> StateLayout::slices(const WeightSpec& weight, const WeightShard& shard) const {
  std::vector<ElementRange> slices = shard.updated_elements();
  for (ElementRange& slice : slices) slice = part(weight, slice);
  return slices;
}

Shape StateLayout::shape_here(const WeightSpec& weight, const WeightShard& shard) const {
  if (block == 1) return shard.updated_shape();
  const Shape whole = shape(weight);
  const int64_t extent = part(weight, shard.updated).extent;
  if (extent == whole.num_elements()) return whole;
  if (whole.rank() == 3) return {extent / whole[2], 1, whole[2]};
  return {extent};
}

}  // namespace nmoe
