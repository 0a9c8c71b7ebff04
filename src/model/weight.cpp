#include "model/weight.h"

#include "base/error.h"
#include "base/rng.h"

namespace nmoe {

Tensor Weight::grad_to_add_to(Backend& ops) {
  if (!accumulate_grad()) ops.fill(grad, 0.0);
  return grad;
}

void Weight::upload(Backend& ops, const void* host) {
  if (!low.defined()) return ops.upload(value, host);
  ops.upload(grad, host);
  ops.split_weight(grad, value, low);
}

void Weight::begin_download(Backend& ops, void* host) const {
  if (!low.defined()) return ops.begin_download(host, value);
  ops.join_weight(value, low, grad);
  ops.begin_download(host, grad);
}

void Weight::initialise(Backend& ops, uint64_t seed, double truncation) {
  switch (spec.init) {
    case InitKind::kZeros:
      return ops.fill(value, 0.0);
    case InitKind::kOnes:
      return ops.fill(value, 1.0);
    case InitKind::kTruncatedNormal:
      break;
  }
  const Tensor master = low.defined() ? grad : value;
  ops.fill_truncated_normal(
      master, {.seed = seed, .stream = fnv1a64(spec.name), .std = spec.init_std, .truncation = truncation});
  if (low.defined()) ops.split_weight(master, value, low);
}

WeightSet::WeightSet(std::vector<WeightSpec> specs) {
  for (WeightSpec& spec : specs) {
    Weight& weight = weights_.emplace_back(std::move(spec));
    const bool is_new = by_name_.emplace(weight.spec.name, &weight).second;
    NMOE_CHECK(is_new, "two weights named {}", weight.spec.name);
  }
}

Weight& WeightSet::at(std::string_view name) {
  const auto found = by_name_.find(name);
  NMOE_CHECK(found != by_name_.end(), "no weight is named {}", name);
  return *found->second;
}

void WeightSet::allocate(Backend& ops, Arena& values, Arena& grads) {
  for (Weight& weight : weights_) {
    const DType dtype = weight.spec.is_stat ? ops.stat_dtype() : ops.compute_dtype();
    weight.value = values.allocate(dtype, weight.spec.shape);
    if (dtype != ops.stat_dtype()) weight.low = values.allocate(DType::kI16, weight.spec.shape);
    if (weight.spec.is_trained()) weight.grad = grads.allocate(ops.stat_dtype(), weight.spec.shape);
  }
}

void WeightSet::initialise(Backend& ops, uint64_t seed, double truncation) {
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
