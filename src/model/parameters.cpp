#include "model/parameters.h"

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"

namespace nmoe {
namespace {

// Draws a thread makes at a time.
constexpr int64_t kBlock = 1 << 14;

template <class Real>
void upload_truncated_normal(Backend& ops, ThreadPool& pool, const Parameter& parameter, uint64_t seed,
                             double truncation) {
  const Philox random(seed, parameter.name);
  const int64_t count = parameter.shape.num_elements();
  std::vector<Real> values(static_cast<size_t>(count));
  pool.parallel_for((count + kBlock - 1) / kBlock, [&](int64_t block, int) {
    const auto end = static_cast<size_t>(std::min(count, (block + 1) * kBlock));
    for (auto i = static_cast<size_t>(block * kBlock); i < end; ++i) {
      values[i] = static_cast<Real>(parameter.init_std * random.truncated_normal(i, truncation));
    }
  });
  upload_parameter(ops, parameter, values.data());
}

}  // namespace

void upload_parameter(Backend& ops, const Parameter& parameter, const void* host) {
  if (!parameter.low.defined()) return ops.upload(parameter.value, host);
  ops.upload(parameter.grad, host);
  ops.split_weight(parameter.grad, parameter.value, parameter.low);
}

void begin_download_parameter(Backend& ops, const Parameter& parameter, void* host) {
  if (!parameter.low.defined()) return ops.begin_download(host, parameter.value);
  ops.join_weight(parameter.value, parameter.low, parameter.grad);
  ops.begin_download(host, parameter.grad);
}

Parameter& ParameterSet::add(Parameter parameter) {
  for (const Parameter& other : parameters_) {
    NMOE_CHECK(other.name != parameter.name, "two parameters named {}", parameter.name);
  }
  return parameters_.emplace_back(std::move(parameter));
}

void ParameterSet::allocate(Backend& ops, Arena& values, Arena& grads) {
  for (Parameter& parameter : parameters_) {
    const DType dtype = parameter.is_stat ? ops.stat_dtype() : ops.compute_dtype();
    parameter.value = values.allocate(dtype, parameter.shape);
    if (dtype != ops.stat_dtype()) parameter.low = values.allocate(DType::kI16, parameter.shape);
    if (parameter.group != ParameterGroup::kBuffer) {
      parameter.grad = grads.allocate(ops.stat_dtype(), parameter.shape);
    }
  }
}

void ParameterSet::initialise(Backend& ops, uint64_t seed, double truncation) {
  ThreadPool pool;
  for (const Parameter& parameter : parameters_) {
    switch (parameter.init) {
      case InitKind::kZeros:
        ops.fill(parameter.value, 0.0);
        break;
      case InitKind::kOnes:
        ops.fill(parameter.value, 1.0);
        break;
      case InitKind::kTruncatedNormal:
        if (ops.stat_dtype() == DType::kF64) {
          upload_truncated_normal<double>(ops, pool, parameter, seed, truncation);
        } else {
          upload_truncated_normal<float>(ops, pool, parameter, seed, truncation);
        }
        break;
    }
  }
}

void ParameterSet::zero_grads(Backend& ops) {
  for (const Parameter& parameter : parameters_) {
    if (parameter.grad.defined()) ops.fill(parameter.grad, 0.0);
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
