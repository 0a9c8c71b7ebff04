#include "model/spec/gqa.h"

#include "model/spec/names.h"

namespace nmoe {

PartTraits describe_gqa(const LayerPart& part, WeightList& weights) {
  const ModelConfig& config = part.config;
  const int64_t D = config.dim, H = config.num_heads, G = config.gqa.num_kv_heads, C = config.gqa.head_dim;
  const std::string name = attention_prefix(part);
  weights.begin_part(WeightPart::kMixer);
  weights.add_joined({weights.matrix(name + "q", H * C, D), weights.matrix(name + "k", G * C, D),
                      weights.matrix(name + "v", G * C, D)});
  weights.add(weights.output(name + "out", D, H * C));
  if (config.gqa.qk_norm) {
    weights.add(WeightList::gain(name + "q_norm", C));
    weights.add(WeightList::gain(name + "k_norm", C));
  }
  return {.flops_per_position = 6.0 * static_cast<double>(H * (C + C)),
          .rope_dim = part.spec.rotates ? C : 0,
          .state = {.widths = {G * C, G * C}, .fixed = {}}};
}

}  // namespace nmoe
