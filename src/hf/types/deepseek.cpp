// Types with latent attention.
#include "hf/config_json_keys.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

void read_mla(Keys& keys, ModelConfig& model) {
  model.attention = PartKind::kMla;
  keys.only("num_key_value_heads", model.num_heads, "every head of latent attention has its own keys and values");
  keys.only("attention_bias", false);
  MlaConfig& mla = model.mla;
  mla.q_lora_rank = keys.at_least(1, {"q_lora_rank"}, 0);
  mla.kv_lora_rank = keys.at_least(1, {"kv_lora_rank"});
  mla.qk_nope_head_dim = keys.at_least(1, {"qk_nope_head_dim"});
  mla.qk_rope_head_dim = keys.at_least(1, {"qk_rope_head_dim"});
  mla.v_head_dim = keys.at_least(1, {"v_head_dim"});
  mla.norm_eps = kHfLatentNormEps;
  keys.only("head_dim", mla.qk_rope_head_dim, "it is qk_rope_head_dim in these models");
  keys.only("qk_head_dim", mla.qk_nope_head_dim + mla.qk_rope_head_dim,
            "it is qk_nope_head_dim + qk_rope_head_dim in these models");
}

// GLM-4-MoE-Lite says it layer by layer, and is then not asked how many of the first have no experts.
void read_layers(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  const Json* types = model.type == ModelType::kGlm4MoeLite ? keys.find("mlp_layer_types") : nullptr;
  if (types == nullptr) {
    config.num_dense_layers = keys.at_least(0, {"first_k_dense_replace"});
    return;
  }
  keys.ignore("first_k_dense_replace");
  LayerKinds kinds(config);
  if (!types->is_array() || types->size() != kinds.dense.size()) {
    throw keys.error("mlp_layer_types", fmt::format("must be a list of {} types", config.num_layers));
  }
  for (size_t i = 0; i < kinds.dense.size(); ++i) {
    if (types->at(i) != "dense" && types->at(i) != "sparse") {
      throw keys.error("mlp_layer_types", "must be a list of \"dense\" and \"sparse\"");
    }
    kinds.dense[i] = types->at(i) == "dense" ? 1 : 0;
  }
  set_layers(config, kinds);
}

// What all of them have in common.
void read_common(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  MoeConfig& moe = config.moe;
  config.dense_dim = keys.at_least(1, {"intermediate_size"});
  moe.expert_dim = keys.at_least(1, {"moe_intermediate_size"});
  moe.top_k = keys.at_least(1, {"num_experts_per_tok"});
  read_mla(keys, config);
  read_layers(keys, model);
  keys.only("moe_layer_freq", 1, "in nmoe every layer behind the dense ones has experts");
  keys.only("ep_size", 1, "weights split over devices are not supported");
  moe.num_experts = keys.at_least(1, routed_experts_key(model.type));
  moe.num_shared_experts = keys.at_least(0, {"n_shared_experts"}, 0);
  moe.routed_scale = keys.positive("routed_scaling_factor");
}

void read_deepseek(Keys& keys, HfModel& model) {
  MoeConfig& moe = model.config.moe;
  read_common(keys, model);
  keys.only("scoring_func", "sigmoid");
  keys.only("topk_method", "noaux_tc");
  moe.score = ScoreFunction::kSigmoid;
  moe.normalise_weights = keys.flag("norm_topk_prob");
  read_groups(keys, moe);
  model.config.rope.layout = keys.flag("rope_interleave", true) ? RopeLayout::kInterleaved : RopeLayout::kHalfSplit;
  model.num_nextn_predict_layers = keys.at_least(0, kNextnKey, 0);
}

void read_deepseek_v2(Keys& keys, HfModel& model) {
  MoeConfig& moe = model.config.moe;
  read_common(keys, model);
  keys.only("mlp_bias", false);
  keys.only("scoring_func", "softmax");
  keys.only("norm_topk_prob", false, "transformers ignores it, DeepSeek's code divides by the sum and does not scale");
  moe.score = ScoreFunction::kSoftmax;
  moe.normalise_weights = false;
  moe.bias_rate = 0.0;
  model.config.rope.layout = RopeLayout::kInterleaved;
  const std::string method = keys.text("topk_method", "");
  if (method == "group_limited_greedy") {
    read_groups(keys, moe);
  } else if (method == "greedy") {
    keys.ignore("n_group");
    keys.ignore("topk_group");
  } else {
    keys.lacks("topk_method", "must be \"greedy\" or \"group_limited_greedy\"");
  }
}

void write_common(Json& json, const HfModel& model) {
  const ModelConfig& config = model.config;
  const MlaConfig& mla = config.mla;
  const MoeConfig& moe = config.moe;
  json["intermediate_size"] = written_dense_dim(config);
  json["moe_intermediate_size"] = moe.expert_dim;
  json[routed_experts_key(model.type).name] = moe.num_experts;
  json["num_experts_per_tok"] = moe.top_k;
  json["norm_topk_prob"] = moe.normalise_weights;
  json["attention_bias"] = false;
  json["num_key_value_heads"] = config.num_heads;
  json["q_lora_rank"] = mla.q_lora_rank == 0 ? Json(nullptr) : Json(mla.q_lora_rank);
  json["kv_lora_rank"] = mla.kv_lora_rank;
  json["qk_nope_head_dim"] = mla.qk_nope_head_dim;
  json["qk_rope_head_dim"] = mla.qk_rope_head_dim;
  json["v_head_dim"] = mla.v_head_dim;
  json["first_k_dense_replace"] = config.num_dense_layers;
  json["moe_layer_freq"] = 1;
  json["n_shared_experts"] = moe.num_shared_experts;
  write_groups(json, moe);
  json["routed_scaling_factor"] = moe.routed_scale;
}

void write_deepseek(Json& json, const HfModel& model) {
  write_common(json, model);
  json["scoring_func"] = "sigmoid";
  json["topk_method"] = "noaux_tc";
  json["rope_interleave"] = model.config.rope.layout == RopeLayout::kInterleaved;
  json[kNextnKey.name] = model.num_nextn_predict_layers;
  if (model.type != ModelType::kGlm4MoeLite) return;
  json["mlp_layer_types"] = Json::array();
  for (const char dense : layer_kinds(model.config).dense) {
    json["mlp_layer_types"].push_back(dense != 0 ? "dense" : "sparse");
  }
}

void write_deepseek_v2(Json& json, const HfModel& model) {
  write_common(json, model);
  json["scoring_func"] = "softmax";
  json["topk_method"] = model.config.moe.num_groups > 1 ? "group_limited_greedy" : "greedy";
}

void require_mla(Fit& fit, const ModelConfig& config) {
  fit.require(config.attention == PartKind::kMla, "model.attention", "latent attention");
  fit.require(config.mla.norm_eps == kHfLatentNormEps, "model.mla.norm_eps", fmt::format("{}", kHfLatentNormEps));
  require_plain_shared_experts(fit, config.moe, 0);
}

void require_deepseek_v2(Fit& fit, const ModelConfig& config, ModelType /*type*/) {
  require_mla(fit, config);
  fit.require(config.moe.score == ScoreFunction::kSoftmax, "model.moe.score", "softmax");
  fit.require(!config.moe.normalise_weights, "model.moe.normalise_weights",
              "weights that are not divided by their sum");
  fit.require(config.moe.bias_rate == 0.0, "model.moe.bias_rate", "no selection bias");
  fit.require(config.dim % config.num_heads == 0, "model.dim", "a multiple of the number of heads");
}

void require_deepseek(Fit& fit, const ModelConfig& config, ModelType /*type*/) {
  require_mla(fit, config);
  fit.require(config.moe.score == ScoreFunction::kSigmoid, "model.moe.score", "sigmoid");
  fit.require(config.moe.num_experts != 1, "model.moe.num_experts", "at least two experts in a group");
}

}  // namespace

TypeText deepseek_text() { return {read_deepseek, write_deepseek, require_deepseek}; }
TypeText deepseek_v2_text() { return {read_deepseek_v2, write_deepseek_v2, require_deepseek_v2}; }

}  // namespace nmoe
