#include "model/weight_set.h"

#include <algorithm>

#include "base/error.h"
#include "rdep/placement.h"

namespace nmoe {

WeightSet::WeightSet(std::vector<WeightSpec> specs, RankShare share) : share_(std::move(share)) {
  for (WeightSpec& spec : specs) {
    Shape shape = spec.shape;
    if (spec.per_expert) {
      const int64_t ranks = share_.experts.count;
      NMOE_CHECK(shape[0] % ranks == 0, "{} experts on {} ranks", shape[0], ranks);
      shape = {shape[0] / ranks, shape[1], shape[2]};
    }
    const size_t index = weights_.size();
    Weight& weight = weights_.emplace_back(std::move(spec), shape);
    if (weight.spec.per_expert) {
      weight.shard.place_experts(places_in_order(weight.spec.shape[0]), share_.experts.index);
    }
    const bool is_new = index_.emplace(weight.spec.name, index).second;
    NMOE_CHECK(is_new, "two weights named {}", weight.spec.name);
  }
  applications_.resize(weights_.size());
}

size_t WeightSet::index_of(std::string_view name) const {
  const auto found = index_.find(name);
  NMOE_CHECK(found != index_.end(), "no weight is named {}", name);
  return found->second;
}

size_t WeightSet::end_of(std::string_view prefix) const {
  size_t end = weights_.size();
  while (end > 0 && !weights_[end - 1].spec.name.starts_with(prefix)) --end;
  return end;
}

void WeightSet::allocate(Ops& ops, Arena& values, Arena& grads, Masters masters, GradientFormat experts) {
  const UpdateShare& mine = share_.updates;
  std::vector<WeightSpec> specs;
  for (const Weight& weight : weights_) specs.push_back(weight.spec);
  const std::vector<FlatRegion> regions =
      deal_weights(specs, mine.by_matrix, mine.count, mine.bucket_bytes, ops.compute_dtype(), ops.stat_dtype(),
                   dtype_bytes(mine.narrowest) < dtype_bytes(ops.stat_dtype()) ? mine.narrowest : ops.stat_dtype());
  for (const FlatRegion& region : regions) {
    flat_.push_back({.values = values.allocate(region.values, {region.num_elements}),
                     .grads = grads.allocate(ops.stat_dtype(), {region.num_elements}),
                     .first_weight = region.first_spec,
                     .updated = region.part(mine.index),
                     .totals = {}});
    for (const FlatRegion::Place& place : region.places) {
      Weight& weight = weights_[place.spec];
      const int64_t end = place.first + weight.shard.shape.num_elements();
      weight.value = flat_.back().values.rows(place.first, end).reshape(weight.shard.shape);
      weight.grad = flat_.back().grads.rows(place.first, end).reshape(weight.shard.shape);
      weight.shard.updated = region.part_of(place, weight.shard.shape.num_elements(), mine.index);
    }
  }
  for (Weight& weight : weights_) {
    if (weight.value.defined()) continue;
    weight.value = values.allocate(weight.spec.is_stat ? ops.stat_dtype() : ops.compute_dtype(), weight.shard.shape);
    const bool halves = weight.spec.group == WeightGroup::kExperts && experts == GradientFormat::kBf16;
    const DType dtype = halves ? DType::kBF16 : ops.stat_dtype();
    if (weight.spec.is_trained()) weight.grad = grads.allocate(dtype, weight.shard.shape);
    weight.shard.updated = {0, weight.shard.shape.num_elements()};
  }

  // Last, since how much of these a rank has is its own, and all before has to lie alike.
  for (Weight& weight : weights_) {
    const bool has_rest = masters == Masters::kWhole && weight.value.dtype() != ops.stat_dtype();
    if (has_rest) weight.low = values.allocate(DType::kI16, weight.shard.updated_shape());
    if (weight.spec.is_trained()) weight.total = weight.shard.updated_of(weight.grad);
  }
  for (size_t i = 0; mine.in_order && i < regions.size(); ++i) {
    FlatWeights& flat = flat_[i];
    flat.totals = grads.allocate(ops.stat_dtype(), {flat.updated.extent});
    for (const FlatRegion::Place& place : regions[i].places) {
      Weight& weight = weights_[place.spec];
      if (weight.shard.updated.extent == 0) continue;
      const int64_t first = place.first + weight.shard.updated.offset - flat.updated.offset;
      weight.total = flat.totals.rows(first, first + weight.shard.updated.extent).reshape(weight.shard.updated_shape());
    }
  }
}

void WeightSet::initialise(Ops& ops, uint64_t seed, double truncation, const MasterRoom& room) {
  for (Weight& weight : weights_) weight.initialise(ops, seed, truncation, room);
}

void WeightSet::begin_step() {
  for (Weight& weight : weights_) {
    weight.begin_step();
    weight.sum.begin_step();
  }
  microbatch_ = -1;
  restart_rounding();
}

void WeightSet::set_gradient_key(Tensor key) {
  for (Weight& weight : weights_) weight.sum.key = key;
}

void WeightSet::set_gradient_products(int64_t count) {
  for (Weight& weight : weights_) weight.sum.num_products = count * weight.spec.num_passes;
}

void WeightSet::restart_rounding() {
  for (Weight& weight : weights_) weight.copies.restart();
}

void WeightSet::begin_microbatch() {
  std::ranges::fill(applications_, 0);
  const int64_t shard = ++microbatch_ * share_.data.count + share_.data.index;
  for (Weight& weight : weights_) {
    const bool per_expert = weight.spec.per_expert;
    weight.copies.begin_microbatch(per_expert ? shard - share_.experts.index : shard);
    if (share_.updates.in_order && !per_expert) weight.begin_step();
  }
}

void WeightSet::begin_application(const WeightRange& weights) {
  for (size_t i = weights.begin; i < weights.end; ++i) ++applications_[i];
}

void WeightSet::end_application(const WeightRange& weights) {
  for (size_t i = weights.begin; i < weights.end; ++i) {
    NMOE_CHECK(applications_[i] > 0, "{}: more backwards than forwards", weights_[i].spec.name);
    --applications_[i];
  }
}

size_t WeightSet::complete_from() const {
  size_t first = applications_.size();
  while (first > 0 && applications_[first - 1] == 0) --first;
  return first;
}

void WeightSet::check_grads() const {
  for (const Weight& weight : weights_) {
    NMOE_CHECK(weight.has_grad() == weight.spec.is_trained(), "{}: gradient written {}, trained {}", weight.spec.name,
               weight.has_grad(), weight.spec.is_trained());
  }
}

}  // namespace nmoe
