#include "model/weight.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "rdep/placement.h"

namespace nmoe {
namespace {

// [E, out, in] of stacked matrices or of one.
Tensor as_matrices(const Tensor& w) { return w.shape().rank() == 3 ? w : w.reshape({1, w.dim(0), w.dim(1)}); }

}  // namespace

Tensor Weight::grad_to_add_to(Ops& ops) {
  if (!accumulate_grad()) ops.fill({.x = grad, .value = 0.0});
  return grad;
}

OperandRounding Weight::gradient_rounding(OperandFormat of) {
  if (in_act) return {};
  if (of != OperandFormat::kNvFp4) return {.format = of};
  constexpr uint64_t kMostOfShard = uint64_t{1} << 20;
  const int64_t shard = shard_ + part_;
  const uint64_t number = static_cast<uint64_t>(shard) * kMostOfShard + num_rounded_[shard]++;
  return {.format = of,
          .random = {.key = rounding_key, .stream = fnv1a64(spec.name) + number, .experts = expert_numbers},
          .transform = transforms};
}

const WeightCodes& Weight::codes_now(Ops& ops) {
  if (codes.defined() && !std::exchange(codes_are_current_, true)) {
    ops.quantize({.format = OperandFormat::kFp8,
                  .blocks = BlockShape::kTiles,
                  .x = coded,
                  .values = codes.values,
                  .scales = codes.scales,
                  .transposed_values = codes.transposed_values,
                  .transposed_scales = codes.transposed_scales});
  }
  return codes;
}

OperandRounding Weight::rounding(Ops& ops) {
  if (in_act || ops.arithmetic() == Arithmetic::kBatchInvariant) return {};
  return {.format = format, .weight = codes_now(ops)};
}

OperandRounding Weight::input_gradient_rounding(Ops& ops) {
  OperandRounding rounding = gradient_rounding(format);
  if (!in_act) rounding.weight = codes_now(ops);
  return rounding;
}

RowCodes Weight::push_codes(Arena& activations, int64_t num_rows, int64_t width) const {
  return takes_codes() ? push_row_codes(activations, num_rows, width) : RowCodes{};
}

void Weight::measure_rows(Ops& ops, Measured operand, const OperandRows& rows, Tensor offsets) {
  const Tensor& x = rows.source;
  // Every token is picked as often as every other: without scales of experts, shares are those of each once.
  const bool each_once = rows.index.defined() && format != OperandFormat::kNvFp4;
  ops.measure_rounding({.format = format,
                        .x = x.reshape({1, x.dim(0), x.dim(1)}),
                        .offsets = each_once ? Tensor() : offsets,
                        .index = each_once ? Tensor() : rows.index,
                        .counts = rounding_counts[static_cast<int64_t>(operand)]});
}

void Weight::measure_forward(Ops& ops, const OperandRows& x, Tensor whole, Tensor offsets) {
  if (!std::exchange(measures_forward_, false)) return;
  measure_rows(ops, Measured::kInputs, x, offsets);
  const Tensor matrices = as_matrices(whole);
  ops.measure_rounding({.format = format,
                        .blocks = format == OperandFormat::kMxFp8 ? BlockShape::kRows : BlockShape::kTiles,
                        .x = matrices,
                        .counts = rounding_counts[static_cast<int64_t>(Measured::kWeights)]});
  ops.measure_product({.format = format,
                       .x = x,
                       .w = matrices,
                       .offsets = offsets,
                       .counts = rounding_counts[static_cast<int64_t>(Measured::kOutputs)]});
}

void Weight::measure_gradient(Ops& ops, const OperandRows& dy, Tensor whole, Tensor offsets) {
  if (!std::exchange(measures_gradient_, false)) return;
  measure_rows(ops, Measured::kGradients, dy, offsets);
  ops.measure_product({.format = format,
                       .x = dy,
                       .w = as_matrices(whole),
                       .over_out = true,
                       .offsets = offsets,
                       .counts = rounding_counts[static_cast<int64_t>(Measured::kInputGradients)]});
}

void Weight::restart_rounding() {
  num_rounded_.clear();
  codes_are_current_ = false;
}

Tensor Weight::updated_of(const Tensor& x) const {
  if (updated.extent == shape.num_elements()) return x;
  return x.reshape({shape.num_elements()}).rows(updated.offset, updated.end());
}

std::vector<ElementRange> Weight::updated_elements() const {
  return experts_.empty() ? std::vector{updated} : experts_;
}

void Weight::place_experts(std::span<const int32_t> places, int64_t rank) {
  NMOE_CHECK(spec.group == WeightGroup::kExperts && static_cast<int64_t>(places.size()) == spec.shape[0],
             "{} places of {} {}", places.size(), spec.name, spec.shape);
  const int64_t size = shape[1] * shape[2];
  experts_.clear();
  for (const int64_t expert : experts_at(places, rank, shape[0])) {
    const ElementRange elements{expert * size, size};
    if (!experts_.empty() && experts_.back().end() == elements.offset) {
      experts_.back().extent += size;
    } else {
      experts_.push_back(elements);
    }
  }
}

std::vector<int32_t> Weight::experts_here() const {
  const int64_t size = shape[1] * shape[2];
  std::vector<int32_t> experts;
  for (const auto& [offset, extent] : experts_) {
    for (int64_t at = offset; at < offset + extent; at += size) experts.push_back(static_cast<int32_t>(at / size));
  }
  return experts;
}

void Weight::upload(Ops& ops, const void* host) {
  if (updated.extent == 0) return;
  Device& device = ops.device();
  const Tensor mine = updated_of(value);
  if (!low.defined()) return device.upload(mine, host);
  const Tensor master = updated_of(grad);
  device.upload(master, host);
  ops.split_weight({.master = master, .w = mine, .low = low});
}

void Weight::begin_download(Ops& ops, void* host) const {
  if (updated.extent == 0) return;
  Device& device = ops.device();
  const Tensor mine = updated_of(value);
  if (!low.defined()) return device.begin_download(host, mine);
  const Tensor master = updated_of(grad);
  ops.join_weight({.w = mine, .low = low, .master = master});
  device.begin_download(host, master);
}

void Weight::initialise(Ops& ops, uint64_t seed, double truncation) {
  if (updated.extent == 0) return;
  const Tensor mine = updated_of(value);
  switch (spec.init) {
    case InitKind::kZeros:
      return ops.fill({.x = mine, .value = 0.0});
    case InitKind::kOnes:
      return ops.fill({.x = mine, .value = 1.0});
    case InitKind::kTruncatedNormal:
      break;
  }
  const Tensor master = low.defined() ? updated_of(grad) : mine;
  int64_t first = 0;
  for (const auto& [offset, extent] : updated_elements()) {
    ops.fill_truncated_normal({.x = master.reshape({master.num_elements()}).rows(first, first + extent),
                               .draws = {.seed = seed,
                                         .stream = fnv1a64(spec.name),
                                         .first = offset,
                                         .std = spec.init_std,
                                         .truncation = truncation}});
    first += extent;
  }
  if (low.defined()) ops.split_weight({.master = master, .w = mine, .low = low});
}

WeightSet::WeightSet(std::vector<WeightSpec> specs, RankShare share) : share_(std::move(share)) {
  for (WeightSpec& spec : specs) {
    Shape shape = spec.shape;
    if (spec.group == WeightGroup::kExperts) {
      const int64_t ranks = share_.experts.count;
      NMOE_CHECK(shape[0] % ranks == 0, "{} experts on {} ranks", shape[0], ranks);
      shape = {shape[0] / ranks, shape[1], shape[2]};
    }
    const size_t index = weights_.size();
    Weight& weight = weights_.emplace_back(std::move(spec), shape);
    if (weight.spec.group == WeightGroup::kExperts) {
      weight.place_experts(places_in_order(weight.spec.shape[0]), share_.experts.index);
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

void WeightSet::allocate(Ops& ops, Arena& values, Arena& grads, Masters masters) {
  const UpdateShare& mine = share_.updates;
  std::vector<WeightSpec> specs;
  for (const Weight& weight : weights_) specs.push_back(weight.spec);
  const std::vector<FlatRegion> regions =
      deal_weights(specs, mine.by_matrix, mine.count, mine.bucket_bytes, ops.compute_dtype(), ops.stat_dtype());
  for (const FlatRegion& region : regions) {
    flat_.push_back({.values = values.allocate(region.values, {region.num_elements}),
                     .grads = grads.allocate(ops.stat_dtype(), {region.num_elements}),
                     .first_weight = region.first_spec,
                     .updated = region.part(mine.index),
                     .totals = {}});
    for (const FlatRegion::Place& place : region.places) {
      Weight& weight = weights_[place.spec];
      const int64_t end = place.first + weight.shape.num_elements();
      weight.value = flat_.back().values.rows(place.first, end).reshape(weight.shape);
      weight.grad = flat_.back().grads.rows(place.first, end).reshape(weight.shape);
      weight.updated = region.part_of(place, weight.shape.num_elements(), mine.index);
    }
  }
  for (Weight& weight : weights_) {
    if (weight.value.defined()) continue;
    weight.value = values.allocate(weight.spec.is_stat ? ops.stat_dtype() : ops.compute_dtype(), weight.shape);
    if (weight.spec.is_trained()) weight.grad = grads.allocate(ops.stat_dtype(), weight.shape);
    weight.updated = {0, weight.shape.num_elements()};
  }

  // Last, since how much of these a rank has is its own, and all before has to lie alike.
  for (Weight& weight : weights_) {
    const bool has_rest = masters == Masters::kWhole && weight.value.dtype() != ops.stat_dtype();
    if (has_rest) weight.low = values.allocate(DType::kI16, weight.updated_shape());
    if (weight.spec.is_trained()) weight.total = weight.updated_of(weight.grad);
  }
  for (size_t i = 0; mine.in_order && i < regions.size(); ++i) {
    FlatWeights& flat = flat_[i];
    flat.totals = grads.allocate(ops.stat_dtype(), {flat.updated.extent});
    for (const FlatRegion::Place& place : regions[i].places) {
      Weight& weight = weights_[place.spec];
      if (weight.updated.extent == 0) continue;
      const int64_t first = place.first + weight.updated.offset - flat.updated.offset;
      weight.total = flat.totals.rows(first, first + weight.updated.extent).reshape(weight.updated_shape());
    }
  }
}

void WeightSet::initialise(Ops& ops, uint64_t seed, double truncation) {
  for (Weight& weight : weights_) weight.initialise(ops, seed, truncation);
}

void WeightSet::begin_step() {
  for (Weight& weight : weights_) weight.begin_step();
  microbatch_ = -1;
  restart_rounding();
}

void WeightSet::restart_rounding() {
  for (Weight& weight : weights_) weight.restart_rounding();
}

void WeightSet::begin_microbatch() {
  std::ranges::fill(applications_, 0);
  const int64_t shard = ++microbatch_ * share_.data.count + share_.data.index;
  for (Weight& weight : weights_) {
    const bool is_stacked = weight.spec.group == WeightGroup::kExperts;
    weight.begin_microbatch(is_stacked ? shard - share_.experts.index : shard);
    if (share_.updates.in_order && !is_stacked) weight.begin_step();
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
