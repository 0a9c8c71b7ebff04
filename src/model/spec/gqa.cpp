#include "model/spec/gqa.h"

#include "model/spec/names.h"

namespace nmoe {

PartTraits describe_gqa(const LayerPart& part, WeightList& weights) {
  const ModelConfig& config = part.config;
  const int64_t D = config.dim, H = config.num_heads, G = config.gqa.num_kv_heads, C = config.gqa.head_dim;
  const std::string name = attention_prefix(part);
  weights.begin_part(WeightPart::kMixer);
  const auto scaling_logits = [](WeightSpec weight) {
    return WeightList::scaling_logits(std::move(weight), PartKind::kGqa);
  };
  WeightSpec q = weights.matrix(name + "q", H * C, D);
  if (!config.gqa.qk_norm) q = scaling_logits(q);
  std::vector<WeightSpec> joined = {q, weights.matrix(name + "k", G * C, D), weights.matrix(name + "v", G * C, D)};
  if (config.gqa.output_gate) joined.push_back(weights.matrix(name + "gate", H * C, D));
  weights.add_joined(joined);
  weights.add(weights.output(name + "out", D, H * C));
  if (config.gqa.bias != AttentionBias::kNone) weights.add(WeightList::bias(name + "qkv_bias", {(H + G + G) * C}));
  if (config.gqa.bias == AttentionBias::kAll) {
    WeightSpec bias = WeightList::bias(name + "out_bias", {D});
    bias.to_residual = true;
    weights.add(bias);
  }
  if (config.gqa.sinks) weights.add(WeightList::bias(name + "sinks", {H}));
  if (config.gqa.qk_norm) {
    const bool over_heads = config.gqa.qk_norm_over == QkNormOver::kAllHeads;
    weights.add(scaling_logits(weights.norm_gain(name + "q_norm", over_heads ? H * C : C)));
    weights.add(weights.norm_gain(name + "k_norm", over_heads ? G * C : C));
  }
  return {.flops_per_position = 6.0 * static_cast<double>(H * (C + C)),
          .rope_dim = part.spec.rotates ? config.gqa.rotated() : 0,
          .state = {.widths = {G * C, G * C}, .fixed = {}}};
}

}  // namespace nmoe
