#include "model/spec/weights.h"

#include <cmath>

#include "base/error.h"

namespace nmoe {

Shape WeightSpec::as_matrices(const Shape& here) const {
  if (num_matrices == 1) return here;
  const int64_t rows = here[-2] / num_matrices;
  NMOE_CHECK(rows * num_matrices == here[-2], "{}: {} is not {} matrices", name, here, num_matrices);
  return {here.num_elements() / (rows * here[-1]), rows, here[-1]};
}

WeightList::WeightList(const ModelConfig& config)
    : std_(config.init.std), output_std_(config.init.std), zero_centred_norms_(config.zero_centred_norms) {
  if (!config.init.depth_scaled_outputs) return;
  // Each part adds to the residual stream once.
  output_std_ /= std::sqrt(static_cast<double>(parts_of(layer_specs(config)).size()));
}

WeightSpec WeightList::matrix(const std::string& name, int64_t out, int64_t in) const {
  return {.name = name, .shape = {out, in}, .group = WeightGroup::kMatrices, .init_std = std_};
}

WeightSpec WeightList::output(const std::string& name, int64_t out, int64_t in) const {
  return {
      .name = name, .shape = {out, in}, .group = WeightGroup::kMatrices, .init_std = output_std_, .to_residual = true};
}

WeightSpec WeightList::gain(const std::string& name, int64_t dim) {
  return {.name = name,
          .shape = {dim},
          .group = WeightGroup::kRest,
          .decay = false,
          .is_stat = true,
          .init = InitKind::kOnes};
}

WeightSpec WeightList::norm_gain(const std::string& name, int64_t dim) const {
  WeightSpec weight = gain(name, dim);
  if (!zero_centred_norms_) return weight;
  weight.init = InitKind::kZeros;
  weight.gain_offset = 1.0;
  weight.decay = true;
  return weight;
}

WeightSpec WeightList::scaling_logits(WeightSpec weight, PartKind mixer) {
  weight.scales_logits = true;
  weight.mixer = mixer;
  return weight;
}

WeightSpec WeightList::bias(const std::string& name, const Shape& shape) {
  WeightSpec weight = gain(name, 0);
  weight.shape = shape;
  weight.init = InitKind::kZeros;
  return weight;
}

WeightSpec WeightList::drawn(WeightSpec weight, InitKind init, double low, double high) {
  weight.init = init;
  weight.init_low = low;
  weight.init_high = high;
  return weight;
}

WeightSpec WeightList::expert_bias(const std::string& name, int64_t num_experts, int64_t dim) {
  WeightSpec weight = bias(name, {num_experts, 1, dim});
  weight.per_expert = true;
  return weight;
}

void WeightList::add(WeightSpec weight) {
  weight.layer = layer_;
  weight.num_passes = num_passes_;
  if (weight.group == WeightGroup::kMatrices || weight.group == WeightGroup::kExperts) weight.part = part_;
  weights_.push_back(std::move(weight));
}

void WeightList::add_joined(std::vector<WeightSpec> weights) {
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i].joins_previous = i > 0;
    add(std::move(weights[i]));
  }
}

}  // namespace nmoe
