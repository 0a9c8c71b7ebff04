// gpt-oss: grouped-query attention with sinks, biases and windows in every other layer; routers by softmax of the
// chosen logits, which is the chosen ones' share of the softmax of all; experts of clamped SwiGLU with biases.
#include <algorithm>

#include "hf/config_json_keys.h"
#include "hf/types/types.h"
#include "ops/contracts/activation.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

constexpr int64_t kWindow = 128;  // where a file does not say it
constexpr GqaTraits kTraits = {.bias = AttentionBias::kAll, .head_dim = 64};

void read_gpt_oss(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  MoeConfig& moe = config.moe;
  read_gqa(keys, config, kTraits, /*kv_optional=*/false);
  config.gqa.sinks = true;
  config.gqa.bias = keys.flag("attention_bias", true) ? AttentionBias::kAll : AttentionBias::kNone;
  config.rope.layout = RopeLayout::kHalfSplit;
  config.activation = Activation::kClampedSwiGlu;
  config.num_dense_layers = 0;
  moe.expert_dim = keys.at_least(1, {"intermediate_size"});
  moe.top_k = keys.at_least(1, {"num_experts_per_tok", "experts_per_token"});
  moe.num_experts = keys.at_least(1, routed_experts_key(model.type));
  moe.num_shared_experts = 0;
  moe.biases = true;
  set_softmax_router(moe);
  moe.normalise_weights = true;
  keys.only("swiglu_limit", kSwiGluLimit, "transformers' experts clamp at 7 whatever it says");
  keys.only("output_router_logits", false, "it adds the balance loss to the model's loss");
  keys.ignore("initial_context_length");  // rope's says it
  LayerKinds kinds(config);
  read_windows(keys, {.has_switch = false, .alternates = true, .size = kWindow}, kinds);
  set_layers(config, kinds);
}

void write_gpt_oss(Json& json, const HfModel& model) {
  const ModelConfig& config = model.config;
  json["intermediate_size"] = config.moe.expert_dim;
  json[routed_experts_key(model.type).name] = config.moe.num_experts;
  json["num_experts_per_tok"] = config.moe.top_k;
  json["attention_bias"] = config.gqa.bias != AttentionBias::kNone;
  json["swiglu_limit"] = kSwiGluLimit;
  write_gqa(json, config);
  const LayerKinds kinds = layer_kinds(config);
  if (std::ranges::max(kinds.windows) > 0) return write_windows(json, kinds, /*has_switch=*/false);
  json["sliding_window"] = kWindow;
  json["layer_types"] = std::vector<std::string>(kinds.windows.size(), "full_attention");
}

void require_gpt_oss(Fit& fit, const ModelConfig& config, ModelType /*type*/) {
  require_gqa(fit, config, kTraits);
  require_no_dense_layers(fit, config);
  require_no_shared_experts(fit, config.moe);
  require_softmax_router(fit, config.moe);
  fit.require(config.moe.normalise_weights, "model.moe.normalise_weights", "weights that are divided by their sum");
}

}  // namespace

TypeText gpt_oss_text() { return {read_gpt_oss, write_gpt_oss, require_gpt_oss}; }

}  // namespace nmoe
