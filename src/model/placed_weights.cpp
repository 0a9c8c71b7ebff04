#include "model/placed_weights.h"

#include <algorithm>
#include <bit>

namespace nmoe {
namespace {

// The upper half of a master weight, as ops/ops.h has it.
uint16_t upper_half(float master) {
  const auto bits = std::bit_cast<uint32_t>(master);
  return static_cast<uint16_t>((bits + 0x8000U) >> 16);
}

void allocate(WeightSet& weights, Storage& storage, const WeightsPlace& place) {
  weights.allocate(storage.device().ops(), storage[ArenaKind::kParameters], storage[ArenaKind::kGradients],
                   place.has_gradients ? Masters::kWhole : Masters::kWithoutRest);
}

}  // namespace

PlacedWeights::PlacedWeights(const ModelConfig& config, const WeightsPlace& place,
                             const std::function<void(WeightSet&, Storage&)>& rehearse)
    : weights_(describe_model(config).weights) {
  StoragePlan plan = plan_storage(place.device, [&](Storage& storage) {
    WeightSet weights(describe_model(config).weights);
    allocate(weights, storage, place);
    rehearse(weights, storage);
  });
  if (!place.has_gradients) plan.leave_out(ArenaKind::kGradients);
  device_ = make_device(place.device);
  check_free_memory(plan, *device_, place.work, place.remedy(plan));
  storage_ = std::make_unique<Storage>(*device_, plan);
  allocate(weights_, *storage_, place);
}

void PlacedWeights::set(Weight& weight, const float* values) {
  if (weight.value.dtype() == DType::kF32) return device_->upload(weight.value, values);
  NMOE_CHECK(weight.value.dtype() == DType::kBF16, "values of {} in {}", weight.spec.name,
             dtype_name(weight.value.dtype()));
  halves_.resize(static_cast<size_t>(weight.value.num_elements()));
  std::transform(values, values + halves_.size(), halves_.begin(), upper_half);
  device_->upload(weight.value, halves_.data());
}

void PlacedWeights::initialise(uint64_t seed, double truncation) {
  const bool rounds = std::ranges::any_of(weights_.all(), [](const Weight& weight) {
    return weight.value.dtype() == DType::kBF16 && !weight.low.defined();
  });
  if (!rounds) return weights_.initialise(device_->ops(), seed, truncation);
  constexpr int64_t kElements = int64_t{1} << 22;
  Arena arena("masters, while random values are drawn");
  arena.reserve(device_->memory(), kElements * static_cast<int64_t>(sizeof(float) + sizeof(int16_t)));
  weights_.initialise(
      device_->ops(), seed, truncation,
      {.master = arena.allocate(DType::kF32, {kElements}), .low = arena.allocate(DType::kI16, {kElements})});
  const std::unique_ptr<Event> drawn = device_->make_event(Lane::kCompute);
  drawn->record();
  drawn->wait();  // before the room goes
}

}  // namespace nmoe
