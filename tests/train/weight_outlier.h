// An outlier that one part of one layer of the tiny model (support/tiny_run.h) cannot bear in any low precision, and
// what checks of precision make of it.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "tensor/convert.h"
#include "train/step/engine.h"

namespace nmoe::test {

// Before each step from `first` on: huge weights of one channel of the first expert of layer 1, where the norm in
// front of it lets nothing through, so that it changes no product and no other operand. That expert is on rank 0.
inline std::function<void(Engine&, int64_t)> outlier_from(int64_t first) {
  return [first](Engine& engine, int64_t step) {
    WeightSet& weights = engine.model().weights();
    Device& device = engine.rank().device;
    const Tensor gain = weights.at("layers.1.mlp_norm").value, experts = weights.at("layers.1.moe.experts_in").value;
    const float zero = 0.0F, huge = 0x1p30F;
    device.upload(gain.rows(0, 1), &zero);
    if (step < first || engine.rank().index() > 0) return;
    float value = 0.0F;  // as many bytes as the weight's dtype has
    narrow(&huge, experts.dtype(), &value, 1);
    for (int64_t row = 0; row < experts.dim(1); ++row) device.upload(experts[0][row].rows(0, 1), &value);
  };
}

// The parts of layers that checks of precision took their format from, such as "1 experts;".
inline std::string parts_in_act(const std::vector<PrecisionRole>& roles) {
  std::string list;
  for (const PrecisionRole& role : roles) {
    if (role.in_act) list += fmt::format("{} {};", role.layer, role.part);
  }
  return list;
}

}  // namespace nmoe::test
