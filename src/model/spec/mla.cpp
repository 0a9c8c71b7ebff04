#include "model/spec/mla.h"

#include "model/spec/names.h"

namespace nmoe {

PartTraits describe_mla(const LayerPart& part, WeightList& weights) {
  const ModelConfig& config = part.config;
  const MlaConfig& mla = config.mla;
  const int64_t D = config.dim, H = config.num_heads, N = mla.qk_nope_head_dim, P = mla.qk_rope_head_dim,
                U = mla.v_head_dim;
  const bool low_rank = mla.q_lora_rank > 0;
  const std::string name = attention_prefix(part);
  weights.begin_part(WeightPart::kMixer);
  const auto queries = [&](int64_t in) {
    return WeightList::scaling_logits(weights.matrix(name + "q", H * (N + P), in), PartKind::kMla);
  };
  weights.add_joined({low_rank ? weights.matrix(name + "q_down", mla.q_lora_rank, D) : queries(D),
                      weights.matrix(name + "kv_down", mla.kv_lora_rank, D), weights.matrix(name + "k_rope", P, D)});
  if (low_rank) {
    weights.add(WeightList::gain(name + "q_norm", mla.q_lora_rank));
    weights.add(queries(mla.q_lora_rank));
  }
  weights.add(WeightList::gain(name + "kv_norm", mla.kv_lora_rank));
  weights.add(weights.matrix(name + "kv_up", H * (N + U), mla.kv_lora_rank));
  weights.add(weights.output(name + "out", D, H * U));
  return {.flops_per_position = 6.0 * static_cast<double>(H * (N + P + U)),
          .rope_dim = P,
          .state = {.widths = {mla.kv_lora_rank + P}, .fixed = {}},
          .training_state = StateSpec{.widths = {H * (N + U), P}, .fixed = {}}};
}

}  // namespace nmoe
