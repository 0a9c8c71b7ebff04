// MiniMax-M2: grouped-query attention that rotates a part of each head, with norms over all heads; routers by sigmoid
// with a selection bias, in every layer.
#include "hf/config_json_keys.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

constexpr GqaTraits kMinimaxTraits = {.norms = GqaTraits::Norms::kAllHeads, .rotates_part = true, .head_dim = 128};

// Of its releases: what transformers computes without them, and what nobody computes.
void read_released(Keys& keys, const ModelConfig& config) {
  keys.only("attn_type_list", Json(std::vector<int>(static_cast<size_t>(config.num_layers), 1)),
            "all layers have the same attention");
  keys.only("qk_norm_type", "per_layer");
  keys.only("use_routing_bias", true, "its routers have a selection bias");
  keys.only("scoring_func", "sigmoid");
  keys.only("shared_intermediate_size", 0, "it has no shared experts");
  keys.none("sliding_window", "transformers' MiniMax-M2 does not look at it");
  for (const char* key : {"layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"}) {
    keys.only(key, 1.0, "residuals are not scaled here");
  }
  for (const char* key : {"mlp_intermediate_size", "mtp_transformer_layers", "num_mtp_modules", "shared_moe_mode",
                          "use_mtp", "max_model_len"}) {
    keys.ignore(key);
  }
}

void read_minimax(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  MoeConfig& moe = config.moe;
  read_gqa(keys, config, kMinimaxTraits, /*kv_optional=*/false);
  keys.only("attention_bias", false);
  keys.only("use_qk_norm", true, "its queries and keys have norms");
  config.rope.layout = RopeLayout::kHalfSplit;
  config.num_dense_layers = 0;
  moe.expert_dim = keys.at_least(1, {"intermediate_size"});
  moe.top_k = keys.at_least(1, {"num_experts_per_tok"});
  moe.num_experts = keys.at_least(1, routed_experts_key(model.type));
  moe.num_shared_experts = 0;
  moe.score = ScoreFunction::kSigmoid;
  moe.normalise_weights = true;
  keys.only("router_jitter_noise", 0.0, "training adds no noise here");
  keys.only("output_router_logits", false, "it adds the balance loss to the model's loss");
  read_released(keys, config);
}

void write_minimax(Json& json, const HfModel& model) {
  const MoeConfig& moe = model.config.moe;
  json["intermediate_size"] = moe.expert_dim;
  json[routed_experts_key(model.type).name] = moe.num_experts;
  json["num_experts_per_tok"] = moe.top_k;
  json["use_qk_norm"] = true;
  json["scoring_func"] = "sigmoid";
  json["use_routing_bias"] = true;
  write_gqa(json, model.config);
}

void require_minimax(Fit& fit, const ModelConfig& config, ModelType /*type*/) {
  require_gqa(fit, config, kMinimaxTraits);
  require_no_dense_layers(fit, config);
  require_no_shared_experts(fit, config.moe);
  fit.require(config.moe.score == ScoreFunction::kSigmoid, "model.moe.score", "sigmoid");
  fit.require(config.moe.num_groups == 1, "model.moe.num_groups", "no groups of experts");
  fit.require(config.moe.routed_scale == 1.0, "model.moe.routed_scale", "no factor of the weights");
  fit.require(config.moe.normalise_weights, "model.moe.normalise_weights", "weights that are divided by their sum");
}

}  // namespace

TypeText minimax_text() { return {read_minimax, write_minimax, require_minimax}; }

}  // namespace nmoe
