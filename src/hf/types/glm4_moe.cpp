// GLM-4-MoE and dots1: grouped-query attention with DeepSeek-V3's experts. GLM's queries, keys and values may have
// biases, a part of each head rotates, and norms of queries and keys are there or not; dots1 always has those.
#include <algorithm>

#include "hf/config_json_keys.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

bool is_glm(ModelType type) { return type == ModelType::kGlm4Moe; }

GqaTraits glm4_moe_traits(ModelType type) {
  return {.norms = is_glm(type) ? GqaTraits::Norms::kPerHeadOrNone : GqaTraits::Norms::kPerHead,
          .bias = is_glm(type) ? AttentionBias::kQkv : AttentionBias::kAll,
          .rotates_part = is_glm(type)};
}

void read_glm4_moe(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  MoeConfig& moe = config.moe;
  read_gqa(keys, config, glm4_moe_traits(model.type), /*kv_optional=*/false);
  if (keys.flag("attention_bias", false)) config.gqa.bias = glm4_moe_traits(model.type).bias;
  config.rope.layout = RopeLayout::kHalfSplit;
  config.dense_dim = keys.at_least(1, {"intermediate_size"});
  config.num_dense_layers = keys.at_least(0, {"first_k_dense_replace"});
  keys.only("moe_layer_freq", 1, "in nmoe every layer behind the dense ones has experts");
  moe.expert_dim = keys.at_least(1, {"moe_intermediate_size"});
  moe.top_k = keys.at_least(1, {"num_experts_per_tok"});
  moe.num_experts = keys.at_least(1, routed_experts_key(model.type));
  moe.num_shared_experts = keys.at_least(1, {"n_shared_experts"});
  moe.routed_scale = keys.positive("routed_scaling_factor", 1.0);
  moe.score = ScoreFunction::kSigmoid;
  moe.normalise_weights = keys.flag("norm_topk_prob", is_glm(model.type));
  if (keys.has("n_group") || keys.has("topk_group")) read_groups(keys, moe);
  if (is_glm(model.type)) {
    config.gqa.qk_norm = keys.flag("use_qk_norm", false);
    model.num_nextn_predict_layers = keys.at_least(0, kNextnKey, 0);
    keys.only("scoring_func", "sigmoid");
    keys.only("topk_method", "noaux_tc");
  } else {
    // Its releases call the selection by bias a scoring function.
    if (keys.text("scoring_func", "sigmoid") != "noaux_tc") keys.only("scoring_func", "sigmoid");
    keys.only("topk_method", "noaux_tc");
    LayerKinds kinds(config);
    std::fill_n(kinds.dense.begin(), std::min(config.num_dense_layers, config.num_layers), 1);
    read_windows(keys, {.has_switch = false}, kinds);
    set_layers(config, kinds);
  }
}

void write_glm4_moe(Json& json, const HfModel& model) {
  const ModelConfig& config = model.config;
  const MoeConfig& moe = config.moe;
  json["intermediate_size"] = written_dense_dim(config);
  json["moe_intermediate_size"] = moe.expert_dim;
  json[routed_experts_key(model.type).name] = moe.num_experts;
  json["num_experts_per_tok"] = moe.top_k;
  json["norm_topk_prob"] = moe.normalise_weights;
  json["attention_bias"] = config.gqa.bias != AttentionBias::kNone;
  write_gqa(json, config);
  json["first_k_dense_replace"] = config.num_dense_layers;
  json["n_shared_experts"] = moe.num_shared_experts;
  write_groups(json, moe);
  json["routed_scaling_factor"] = moe.routed_scale;
  if (is_glm(model.type)) {
    json["use_qk_norm"] = config.gqa.qk_norm;
    json[kNextnKey.name] = model.num_nextn_predict_layers;
  } else {
    write_windows(json, layer_kinds(config), /*has_switch=*/false);
  }
}

void require_glm4_moe(Fit& fit, const ModelConfig& config, ModelType type) {
  require_gqa(fit, config, glm4_moe_traits(type));
  require_plain_shared_experts(fit, config.moe, 1);
  fit.require(config.moe.score == ScoreFunction::kSigmoid, "model.moe.score", "sigmoid");
  fit.require(config.moe.num_experts != 1, "model.moe.num_experts", "at least two experts in a group");
}

}  // namespace

TypeText glm4_moe_text() { return {read_glm4_moe, write_glm4_moe, require_glm4_moe}; }

}  // namespace nmoe
