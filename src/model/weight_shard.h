// Which part of a weight a rank has, and which elements of that it updates.
//
// A rank has all of a weight, or of stacked experts those in its slots. It *updates* some of the elements that it has:
// all of a weight that only it has (its experts) or that all ranks update alike (buffers), and its share of a weight
// that every rank of its domain has (model/spec/flat_weights.h). It holds the rest of the master and the optimizer's
// state of the elements it updates only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/spec/flat_weights.h"
#include "tensor/tensor.h"

namespace nmoe {

class WeightShard {
 public:
  // `shape_here`: of what this rank has of a weight of shape `whole`.
  WeightShard(const Shape& whole, const Shape& shape_here) : shape(shape_here), whole_(whole) {}

  const Shape shape;      // of value and gradient here
  ElementRange updated;   // the elements that this rank updates, counted among those that it has
  Tensor expert_numbers;  // [E] i32: the expert in each slot here; undefined: all experts, in order

  // The part of `x`, value or gradient, that this rank updates: x itself if that is all of it, else flat; empty if this
  // rank updates nothing of it.
  Tensor updated_of(const Tensor& x) const;
  Shape updated_shape() const { return updated.extent == shape.num_elements() ? shape : Shape({updated.extent}); }
  // Where the elements that this rank updates are in the whole weight, in the order in which this rank stores them: one
  // range, or one for each series of experts that are neighbours in both. An empty range if it updates none.
  std::vector<ElementRange> updated_elements() const;
  // For stacked experts: sets which expert is in each slot of this rank, whose index is `rank`, from the places [E] of
  // all experts (rdep/placement.h).
  void place_experts(std::span<const int32_t> places, int64_t rank);
  // The expert in each slot of this rank.
  std::vector<int32_t> experts_here() const;

 private:
  Shape whole_;
  std::vector<ElementRange> experts_;  // where those here are in the whole weight; empty: no stacked experts
};

}  // namespace nmoe
