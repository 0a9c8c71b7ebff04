// Mixtral and OLMoE: grouped-query attention, and routers by softmax in every layer; OLMoE's queries and keys have
// norms over all heads. What Mixtral calls softmax of the chosen logits is the chosen ones' share of all of their
// softmax.
#include <algorithm>

#include "hf/config_json_keys.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

bool is_olmoe(ModelType type) { return type == ModelType::kOlmoe; }

GqaTraits mixtral_traits(ModelType type) {
  return {.norms = is_olmoe(type) ? GqaTraits::Norms::kAllHeads : GqaTraits::Norms::kNone,
          .bias = is_olmoe(type) ? AttentionBias::kAll : AttentionBias::kNone};
}

void read_mixtral(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  MoeConfig& moe = config.moe;
  read_gqa(keys, config, mixtral_traits(model.type), /*kv_optional=*/is_olmoe(model.type));
  config.rope.layout = RopeLayout::kHalfSplit;
  config.num_dense_layers = 0;
  moe.expert_dim = keys.at_least(1, {"intermediate_size"});
  moe.top_k = keys.at_least(1, {"num_experts_per_tok"});
  moe.num_experts = keys.at_least(1, routed_experts_key(model.type));
  moe.num_shared_experts = 0;
  set_softmax_router(moe);
  if (is_olmoe(model.type)) {
    moe.normalise_weights = keys.flag("norm_topk_prob", false);
    config.gqa.bias = keys.flag("attention_bias", false) ? AttentionBias::kAll : AttentionBias::kNone;
    keys.none("clip_qkv", "queries, keys and values are not clipped here");
    if (config.gqa.head_dim * config.num_heads != config.dim) {
      keys.lacks("head_dim", "norms over all heads are as wide as the model in this type");
    }
  } else {
    moe.normalise_weights = true;
    keys.only("attention_bias", false);
    keys.only("router_jitter_noise", 0.0, "training adds no noise here");
    LayerKinds kinds(config);
    std::ranges::fill(kinds.windows, keys.at_least(1, {"sliding_window"}, 0));
    set_layers(config, kinds);
  }
  keys.only("output_router_logits", false, "it adds the balance loss to the model's loss");
}

void write_mixtral(Json& json, const HfModel& model) {
  const ModelConfig& config = model.config;
  const MoeConfig& moe = config.moe;
  json["intermediate_size"] = moe.expert_dim;
  json[routed_experts_key(model.type).name] = moe.num_experts;
  json["num_experts_per_tok"] = moe.top_k;
  write_gqa(json, config);
  if (!is_olmoe(model.type)) {
    if (const int64_t window = layer_kinds(config).windows.front(); window > 0) json["sliding_window"] = window;
    return;
  }
  json["norm_topk_prob"] = moe.normalise_weights;
  json["attention_bias"] = config.gqa.bias == AttentionBias::kAll;
}

void require_mixtral(Fit& fit, const ModelConfig& config, ModelType type) {
  require_gqa(fit, config, mixtral_traits(type));
  require_no_dense_layers(fit, config);
  require_no_shared_experts(fit, config.moe);
  require_softmax_router(fit, config.moe);
  if (is_olmoe(type)) {
    fit.require(config.gqa.head_dim * config.num_heads == config.dim, "model.gqa.head_dim",
                "heads that are as wide as the model together");
  } else {
    fit.require(config.moe.normalise_weights, "model.moe.normalise_weights", "weights that are divided by their sum");
  }
}

}  // namespace

TypeText mixtral_text() { return {read_mixtral, write_mixtral, require_mixtral}; }

}  // namespace nmoe
