// Llama and Qwen3: grouped-query attention, and no experts.
#include <algorithm>

#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

GqaTraits dense_traits(ModelType type) {
  return {.norms = type == ModelType::kQwen3 ? GqaTraits::Norms::kPerHead : GqaTraits::Norms::kNone,
          .bias = AttentionBias::kAll,
          .head_dim = type == ModelType::kQwen3 ? 128 : 0};
}

void read_dense(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  read_gqa(keys, config, dense_traits(model.type), /*kv_optional=*/model.type == ModelType::kLlama);
  config.gqa.bias = keys.flag("attention_bias", false) ? AttentionBias::kAll : AttentionBias::kNone;
  config.rope.layout = RopeLayout::kHalfSplit;
  config.dense_dim = keys.at_least(1, {"intermediate_size"});
  config.moe.num_experts = 0;
  keys.only("mlp_bias", false, "MLPs have no biases here");
  if (model.type != ModelType::kQwen3) return;
  LayerKinds kinds(config);
  std::ranges::fill(kinds.dense, 1);
  read_windows(keys, {}, kinds);
  set_layers(config, kinds);
}

void write_dense(Json& json, const HfModel& model) {
  write_gqa(json, model.config);
  json["intermediate_size"] = model.config.dense_dim;
  json["attention_bias"] = model.config.gqa.bias == AttentionBias::kAll;
  if (model.type == ModelType::kQwen3) write_windows(json, layer_kinds(model.config), /*has_switch=*/true);
}

void require_dense(Fit& fit, const ModelConfig& config, ModelType type) {
  require_gqa(fit, config, dense_traits(type));
  fit.require(type != ModelType::kLlama || config.dim % config.num_heads == 0, "model.dim",
              "a multiple of the number of heads");  // which transformers checks, whatever the size of a head
}

}  // namespace

TypeText dense_text() { return {read_dense, write_dense, require_dense}; }

}  // namespace nmoe
