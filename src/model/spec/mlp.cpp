#include "model/spec/mlp.h"

#include "model/spec/names.h"

namespace nmoe {

WeightSpec pre_activation_weight(const WeightList& weights, const std::string& name, Activation activation,
                                 int64_t width, int64_t hidden) {
  const int64_t W = pre_activation_width(activation, hidden);
  WeightSpec weight = weights.matrix(name, W, width);
  weight.num_matrices = W / hidden;
  return weight;
}

void describe_mlp(const std::string& prefix, Activation activation, int64_t width, int64_t hidden,
                  WeightList& weights) {
  weights.add(pre_activation_weight(weights, prefix + "in", activation, width, hidden));
  weights.add(weights.output(prefix + "out", width, hidden));
}

PartTraits describe_dense(const LayerPart& part, WeightList& weights) {
  weights.begin_part(WeightPart::kDense);
  describe_mlp(mlp_prefix(part), part.config.activation, part.config.dim, part.spec.hidden, weights);
  return {};
}

}  // namespace nmoe
