#include "model/parameters.h"

#include "base/rng.h"

namespace nmoe {
namespace {

void draw_truncated_normal(Ops& ops, const Parameter& parameter, uint64_t seed, double truncation) {
  const Tensor master = parameter.low.defined() ? parameter.grad : parameter.value;
  ops.fill_truncated_normal(
      {master, {.seed = seed, .stream = fnv1a64(parameter.name), .std = parameter.init_std, .truncation = truncation}});
  if (parameter.low.defined()) ops.split_weight({master, parameter.value, parameter.low});
}

}  // namespace

void upload_parameter(Ops& ops, const Parameter& parameter, const void* host) {
  if (!parameter.low.defined()) return ops.device().upload(parameter.value, host);
  ops.device().upload(parameter.grad, host);
  ops.split_weight({parameter.grad, parameter.value, parameter.low});
}

void begin_download_parameter(Ops& ops, const Parameter& parameter, void* host) {
  if (!parameter.low.defined()) return ops.device().begin_download(host, parameter.value);
  ops.join_weight({parameter.value, parameter.low, parameter.grad});
  ops.device().begin_download(host, parameter.grad);
}

Parameter& ParameterSet::add(Parameter parameter) {
  for (const Parameter& other : parameters_) {
    NMOE_CHECK(other.name != parameter.name, "two parameters named {}", parameter.name);
  }
  return parameters_.emplace_back(std::move(parameter));
}

void ParameterSet::allocate(Ops& ops, Arena& values, Arena& grads) {
  for (Parameter& parameter : parameters_) {
    const DType dtype = parameter.is_stat ? ops.stat_dtype() : ops.compute_dtype();
    parameter.value = values.allocate(dtype, parameter.shape);
    if (dtype != ops.stat_dtype()) parameter.low = values.allocate(DType::kI16, parameter.shape);
    if (parameter.group != ParameterGroup::kBuffer) {
      parameter.grad = grads.allocate(ops.stat_dtype(), parameter.shape);
    }
  }
}

void ParameterSet::initialise(Ops& ops, uint64_t seed, double truncation) {
  for (const Parameter& parameter : parameters_) {
    switch (parameter.init) {
      case InitKind::kZeros:
        ops.fill({parameter.value, 0.0});
        break;
      case InitKind::kOnes:
        ops.fill({parameter.value, 1.0});
        break;
      case InitKind::kTruncatedNormal:
        draw_truncated_normal(ops, parameter, seed, truncation);
        break;
    }
  }
}

int64_t ParameterSet::num_trained() const {
  int64_t count = 0;
  for (const Parameter& parameter : parameters_) {
    if (parameter.group != ParameterGroup::kBuffer) count += parameter.shape.num_elements();
  }
  return count;
}

}  // namespace nmoe
