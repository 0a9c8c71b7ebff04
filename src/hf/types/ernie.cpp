// ERNIE-4.5-MoE: grouped-query attention with interleaved pairs; routers by softmax with a selection bias.
#include "hf/config_json_keys.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

constexpr GqaTraits kErnieTraits = {};

// Layers from the start index on have experts, up to the last.
void read_layers(Keys& keys, ModelConfig& config) {
  keys.only("moe_layer_interval", 1, "in nmoe every layer behind the dense ones has experts");
  config.num_dense_layers = keys.at_least(0, {"moe_layer_start_index"});
  const int64_t last = keys.at_least(-1, {"moe_layer_end_index"}, -1);
  if (last != -1 && last != config.num_layers - 1) {
    keys.lacks("moe_layer_end_index", "in nmoe every layer behind the dense ones has experts");
  }
}

void read_ernie(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  MoeConfig& moe = config.moe;
  read_gqa(keys, config, kErnieTraits, /*kv_optional=*/false);
  keys.only("use_bias", false, "it gives MLPs and experts biases, too");
  config.rope.layout = RopeLayout::kInterleaved;
  config.dense_dim = keys.at_least(1, {"intermediate_size"});
  read_layers(keys, config);
  moe.expert_dim = keys.at_least(1, {"moe_intermediate_size"});
  moe.top_k = keys.at_least(1, {"moe_k", "num_experts_per_tok"});
  moe.num_experts = keys.at_least(1, routed_experts_key(model.type));
  moe.num_shared_experts = keys.at_least(0, {"moe_num_shared_experts"}, 2);
  moe.score = ScoreFunction::kSoftmax;
  moe.normalise_weights = true;
  keys.only("moe_norm_min", 1e-12, "sums of weights have no other lower limit here");
  keys.only("output_router_logits", false, "it adds the balance loss to the model's loss");
  model.num_nextn_predict_layers = keys.at_least(0, kNextnKey, 0);
  // Of its releases.
  keys.only("moe_use_aux_free", true, "its routers have a selection bias");
  keys.only("moe_gate", "topk");
  keys.only("hidden_dropout_prob", 0.0, "nothing is dropped here");
  keys.only("compression_ratio", 1.0, "positions are not compressed here");
  for (const char* key : {"moe_capacity", "fuse_rope"}) keys.ignore(key);
}

void write_ernie(Json& json, const HfModel& model) {
  const ModelConfig& config = model.config;
  const MoeConfig& moe = config.moe;
  json["intermediate_size"] = written_dense_dim(config);
  json["moe_intermediate_size"] = moe.expert_dim;
  json[routed_experts_key(model.type).name] = moe.num_experts;
  json["moe_k"] = moe.top_k;
  json["moe_num_shared_experts"] = moe.num_shared_experts;
  json["moe_layer_start_index"] = config.num_dense_layers;
  json["moe_layer_end_index"] = -1;
  json["moe_layer_interval"] = 1;
  json["use_bias"] = false;
  write_gqa(json, config);
  if (model.num_nextn_predict_layers > 0) json[kNextnKey.name] = model.num_nextn_predict_layers;
}

void require_ernie(Fit& fit, const ModelConfig& config, ModelType /*type*/) {
  require_gqa(fit, config, kErnieTraits);
  require_plain_shared_experts(fit, config.moe, 0);
  fit.require(config.moe.score == ScoreFunction::kSoftmax, "model.moe.score", "softmax");
  fit.require(config.moe.num_groups == 1, "model.moe.num_groups", "no groups of experts");
  fit.require(config.moe.routed_scale == 1.0, "model.moe.routed_scale", "no factor of the weights");
  fit.require(config.moe.normalise_weights, "model.moe.normalise_weights", "weights that are divided by their sum");
}

}  // namespace

TypeText ernie_text() { return {read_ernie, write_ernie, require_ernie}; }

}  // namespace nmoe
