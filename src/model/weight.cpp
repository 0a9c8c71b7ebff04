#include "model/weight.h"

#include "base/error.h"
#include "base/rng.h"

namespace nmoe {

Tensor Weight::grad_to_add_to(Ops& ops) {
  if (!accumulate_grad()) ops.fill({.x = grad, .value = 0.0});
  return grad;
}

void Weight::upload(Ops& ops, const void* host) {
  Device& device = ops.device();
  if (!low.defined()) return device.upload(value, host);
  device.upload(grad, host);
  ops.split_weight({.master = grad, .w = value, .low = low});
}

void Weight::begin_download(Ops& ops, void* host) const {
  Device& device = ops.device();
  if (!low.defined()) return device.begin_download(host, value);
  ops.join_weight({.w = value, .low = low, .master = grad});
  device.begin_download(host, grad);
}

void Weight::initialise(Ops& ops, uint64_t seed, double truncation) {
  switch (spec.init) {
    case InitKind::kZeros:
      return ops.fill({.x = value, .value = 0.0});
    case InitKind::kOnes:
      return ops.fill({.x = value, .value = 1.0});
    case InitKind::kTruncatedNormal:
      break;
  }
  const Tensor master = low.defined() ? grad : value;
  ops.fill_truncated_normal({.x = master,
                             .draws = {.seed = seed,
                                       .stream = fnv1a64(spec.name),
                                       .first = offset,
                                       .std = spec.init_std,
                                       .truncation = truncation}});
  if (low.defined()) ops.split_weight({.master = master, .w = value, .low = low});
}

WeightSet::WeightSet(std::vector<WeightSpec> specs, ExpertShare share) {
  for (WeightSpec& spec : specs) {
    Shape shape = spec.shape;
    if (spec.group == WeightGroup::kExperts) {
      NMOE_CHECK(shape[0] % share.count == 0, "{} experts on {} ranks", shape[0], share.count);
      shape = {shape[0] / share.count, shape[1], shape[2]};
    }
    const int64_t offset = spec.group == WeightGroup::kExperts ? share.index * shape.num_elements() : 0;
    Weight& weight = weights_.emplace_back(std::move(spec), shape, offset);
    const bool is_new = by_name_.emplace(weight.spec.name, &weight).second;
    NMOE_CHECK(is_new, "two weights named {}", weight.spec.name);
  }
}

Weight& WeightSet::at(std::string_view name) {
  const auto found = by_name_.find(name);
  NMOE_CHECK(found != by_name_.end(), "no weight is named {}", name);
  return *found->second;
}

void WeightSet::allocate(Ops& ops, Arena& values, Arena& grads) {
  for (Weight& weight : weights_) {
    const DType dtype = weight.spec.is_stat ? ops.stat_dtype() : ops.compute_dtype();
    weight.value = values.allocate(dtype, weight.shape);
    if (dtype != ops.stat_dtype()) weight.low = values.allocate(DType::kI16, weight.shape);
  }
  const auto allocate_grads = [&](bool parts) {
    for (Weight& weight : weights_) {
      if (weight.spec.is_trained() && weight.is_part() == parts) {
        weight.grad = grads.allocate(ops.stat_dtype(), weight.shape);
      }
    }
  };
  const int64_t begin = grads.mark();
  allocate_grads(false);
  const int64_t num_bytes = grads.mark() - begin;
  whole_grads_ = Tensor(weights_.front().grad.raw(), ops.stat_dtype(),
                        {num_bytes / static_cast<int64_t>(dtype_bytes(ops.stat_dtype()))});
  allocate_grads(true);
}

void WeightSet::initialise(Ops& ops, uint64_t seed, double truncation) {
  for (Weight& weight : weights_) weight.initialise(ops, seed, truncation);
}

void WeightSet::begin_step() {
  for (Weight& weight : weights_) weight.begin_step();
}

void WeightSet::check_grads() const {
  for (const Weight& weight : weights_) {
    NMOE_CHECK(weight.has_grad() == weight.spec.is_trained(), "{}: gradient written {}, trained {}", weight.spec.name,
               weight.has_grad(), weight.spec.is_trained());
  }
}

}  // namespace nmoe
