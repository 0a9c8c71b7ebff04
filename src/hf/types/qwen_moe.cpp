// Qwen2-MoE and Qwen3-MoE: grouped-query attention and routers by softmax; Qwen2's with gated shared experts, Qwen3's
// with norms of queries and keys.
#include <algorithm>

#include "hf/config_json_keys.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

bool is_qwen2(ModelType type) { return type == ModelType::kQwen2Moe; }

GqaTraits qwen_moe_traits(ModelType type) {
  return {.norms = is_qwen2(type) ? GqaTraits::Norms::kNone : GqaTraits::Norms::kPerHead,
          .bias = is_qwen2(type) ? AttentionBias::kQkv : AttentionBias::kAll};
}

// Written by some releases, with what transformers computes without them.
void read_no_shared_experts(Keys& keys) {
  keys.only("use_qk_norm", true, "Qwen3's queries and keys have norms");
  keys.only("qkv_bias", false);
  for (const char* key : {"shared_expert_intermediate_size", "num_shared_experts", "n_shared_experts"}) {
    keys.only(key, 0, "Qwen3-MoE has no shared experts");
  }
}

// Qwen3-MoE's windows are of all layers, whatever max_window_layers.
void read_window_of_all(Keys& keys, LayerKinds& kinds) {
  keys.ignore("max_window_layers");
  keys.ignore("sliding_window");
  if (keys.flag("use_sliding_window", false) && !keys.says_null("sliding_window")) {
    std::ranges::fill(kinds.windows, keys.at_least(1, {"sliding_window"}, 4096));
  }
  const Json* types = keys.find("layer_types");
  const auto is_full = [](const Json& type) { return type == "full_attention"; };
  if (types != nullptr && !(types->is_array() && std::ranges::all_of(*types, is_full))) {
    keys.lacks("layer_types", "transformers' Qwen3-MoE does not look at it");
  }
}

void read_qwen_moe(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  MoeConfig& moe = config.moe;
  read_gqa(keys, config, qwen_moe_traits(model.type), /*kv_optional=*/false);
  config.rope.layout = RopeLayout::kHalfSplit;
  config.dense_dim = keys.at_least(1, {"intermediate_size"});
  moe.expert_dim = keys.at_least(1, {"moe_intermediate_size"});
  moe.top_k = keys.at_least(1, {"num_experts_per_tok"});
  moe.num_experts = keys.at_least(1, routed_experts_key(model.type));
  set_softmax_router(moe);
  if (is_qwen2(model.type)) {
    moe.normalise_weights = keys.flag("norm_topk_prob", false);
    config.gqa.bias = keys.flag("qkv_bias", true) ? AttentionBias::kQkv : AttentionBias::kNone;
    moe.num_shared_experts = 1;
    moe.shared_dim = keys.at_least(1, {"shared_expert_intermediate_size"});
    moe.shared_gate = true;
  } else {
    moe.normalise_weights = keys.flag("norm_topk_prob");
    config.gqa.bias = keys.flag("attention_bias", false) ? AttentionBias::kAll : AttentionBias::kNone;
    moe.num_shared_experts = 0;
    read_no_shared_experts(keys);
  }
  keys.only("mlp_bias", false);
  keys.only("output_router_logits", false, "it adds the balance loss to the model's loss");
  LayerKinds kinds(config);
  read_dense_layers(keys, kinds);
  if (is_qwen2(model.type)) {
    read_windows(keys, {.is_qwen2 = true}, kinds);
  } else {
    read_window_of_all(keys, kinds);
  }
  set_layers(config, kinds);
}

void write_qwen_moe(Json& json, const HfModel& model) {
  const ModelConfig& config = model.config;
  const MoeConfig& moe = config.moe;
  json["intermediate_size"] = written_dense_dim(config);
  json["moe_intermediate_size"] = moe.expert_dim;
  json[routed_experts_key(model.type).name] = moe.num_experts;
  json["num_experts_per_tok"] = moe.top_k;
  json["norm_topk_prob"] = moe.normalise_weights;
  write_gqa(json, config);
  if (is_qwen2(model.type)) {
    json["qkv_bias"] = config.gqa.bias == AttentionBias::kQkv;
    json["shared_expert_intermediate_size"] = written_shared_dim(moe);
  } else {
    json["attention_bias"] = config.gqa.bias == AttentionBias::kAll;
  }
  const LayerKinds kinds = layer_kinds(config);
  write_dense_layers(json, kinds);
  if (is_qwen2(model.type)) {
    write_windows(json, kinds, /*has_switch=*/true);
  } else if (kinds.windows.front() > 0) {
    json["use_sliding_window"] = true;
    json["sliding_window"] = kinds.windows.front();
  }
}

void require_qwen_moe(Fit& fit, const ModelConfig& config, ModelType type) {
  require_gqa(fit, config, qwen_moe_traits(type));
  if (is_qwen2(type)) {
    fit.require(config.moe.num_shared_experts > 0, "model.moe.num_shared_experts", "shared experts");
    fit.require(config.moe.shared_gate, "model.moe.shared_gate", "a gate of its shared experts");
  } else {
    require_no_shared_experts(fit, config.moe);
  }
  require_softmax_router(fit, config.moe);
}

}  // namespace

TypeText qwen_moe_text() { return {read_qwen_moe, write_qwen_moe, require_qwen_moe}; }

}  // namespace nmoe
