// Qwen3-Next: layers of Gated DeltaNet and of grouped-query attention with gates and norms of queries and keys, each
// followed by experts (softmax scores, a shared one behind a gate) or an MLP; norms are zero-centred, but for those
// behind the recurrence.
#include <algorithm>

#include "hf/config_json_keys.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

constexpr PartSpec kQwenRecurrent = {.kind = PartKind::kGatedDeltaNet, .rotates = false};
constexpr PartSpec kQwenAttention = {.kind = PartKind::kGqa};
constexpr std::string_view kQwenRecurrentName = "linear_attention", kQwenAttentionName = "full_attention";

GqaTraits qwen3_next_traits() { return {.norms = GqaTraits::Norms::kPerHead, .rotates_part = true, .head_dim = 256}; }

// By layer_types, or every full_attention_interval-th attends.
std::vector<PartSpec> read_qwen_mixers(Keys& keys, int64_t num_layers) {
  const bool has_interval = keys.has("full_attention_interval");
  const int64_t interval = keys.at_least(1, {"full_attention_interval"}, 4);
  std::vector<PartSpec> mixers;
  for (int64_t i = 1; i <= num_layers; ++i) mixers.push_back(i % interval == 0 ? kQwenAttention : kQwenRecurrent);
  const Json* types = keys.find("layer_types");
  if (types == nullptr) return mixers;
  if (!types->is_array() || std::ssize(*types) != num_layers) {
    throw keys.error("layer_types", fmt::format("must be a list of {} types", num_layers));
  }
  std::vector<PartSpec> said;
  for (const Json& type : *types) {
    if (type != kQwenRecurrentName && type != kQwenAttentionName) {
      keys.lacks("layer_types", fmt::format("the type has no {}", type.dump()));
      return mixers;
    }
    said.push_back(type == kQwenAttentionName ? kQwenAttention : kQwenRecurrent);
  }
  if (has_interval && said != mixers) {
    throw keys.error("layer_types", fmt::format("full_attention_interval = {} says otherwise", interval),
                     "keep one of the two keys");
  }
  return said;
}

void read_mixed_layers(Keys& keys, ModelConfig& config) {
  const std::vector<PartSpec> mixers = read_qwen_mixers(keys, config.num_layers);
  LayerKinds kinds(config);
  read_dense_layers(keys, kinds);
  std::vector<LayerSpec> layers;
  for (size_t i = 0; i < mixers.size(); ++i) {
    const bool is_dense = kinds.dense[i] != 0 || config.moe.num_experts == 0;
    layers.push_back({.parts = {mixers[i], {.kind = is_dense ? PartKind::kDense : PartKind::kMoe}}});
  }
  if (count_parts(layers, PartKind::kGqa) == 0) {
    keys.lacks("layer_types", "models without attention are not supported");
  }
  if (count_parts(layers, PartKind::kMoe) == 0) config.moe = {.num_experts = 0};
  config.layers = write_layer_pattern(layers);
}

void read_gated_deltanet(Keys& keys, GatedDeltaNetConfig& net) {
  net.num_key_heads = keys.at_least(1, {"linear_num_key_heads"}, 16);
  net.num_value_heads = keys.at_least(1, {"linear_num_value_heads"}, 32);
  net.key_head_dim = keys.at_least(1, {"linear_key_head_dim"}, 128);
  net.value_head_dim = keys.at_least(1, {"linear_value_head_dim"}, 128);
  net.conv_width = keys.at_least(1, {"linear_conv_kernel_dim"}, 4);
}

void read_gated_experts(Keys& keys, const HfModel& model, MoeConfig& moe) {
  set_softmax_router(moe);
  moe.num_experts = keys.at_least(0, routed_experts_key(model.type), 512);
  moe.top_k = keys.at_least(1, {"num_experts_per_tok"}, 10);
  moe.expert_dim = keys.at_least(1, {"moe_intermediate_size"}, 512);
  moe.normalise_weights = keys.flag("norm_topk_prob", true);
  moe.num_shared_experts = 1;
  moe.shared_dim = keys.at_least(1, {"shared_expert_intermediate_size"}, 512);
  moe.shared_gate = true;
  keys.only("output_router_logits", false, "it adds the balance loss to the model's loss");
}

void read_qwen3_next(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  config.zero_centred_norms = true;
  read_gqa(keys, config, qwen3_next_traits(), /*kv_optional=*/false);
  config.gqa.output_gate = true;
  config.rope.layout = RopeLayout::kHalfSplit;
  keys.only("attention_bias", false, "attention with gates has no biases here");
  keys.only("use_sliding_window", false, "transformers' Qwen3-Next does not look at it");
  keys.ignore("sliding_window");  // which those two say the size and the layers of
  keys.ignore("max_window_layers");
  read_gated_deltanet(keys, config.gated_deltanet);
  config.dense_dim = keys.at_least(1, {"intermediate_size"}, 5632);
  MoeConfig experts;
  read_gated_experts(keys, model, experts);
  config.moe = experts;
  read_mixed_layers(keys, config);
  // Published files have one module, and no key that says so.
  model.num_nextn_predict_layers = keys.at_least(0, kNextnKey, 1);
  model.prediction_layers = has_kind(config, PartKind::kMoe) ? "gqa/moe" : "gqa/dense";
}

void write_qwen3_next(Json& json, const HfModel& model) {
  const ModelConfig& config = model.config;
  const MoeConfig& moe = config.moe;
  json["intermediate_size"] = written_dense_dim(config);
  write_gqa(json, config);
  json["layer_types"] = Json::array();
  for (const LayerSpec& layer : layer_specs(config)) {
    json["layer_types"].push_back(layer.parts.front().kind == PartKind::kGqa ? kQwenAttentionName : kQwenRecurrentName);
  }
  if (has_kind(config, PartKind::kGatedDeltaNet)) {
    const GatedDeltaNetConfig& net = config.gated_deltanet;
    json["linear_num_key_heads"] = net.num_key_heads;
    json["linear_num_value_heads"] = net.num_value_heads;
    json["linear_key_head_dim"] = net.key_head_dim;
    json["linear_value_head_dim"] = net.value_head_dim;
    json["linear_conv_kernel_dim"] = net.conv_width;
  }
  const bool has_experts = has_kind(config, PartKind::kMoe);
  json[routed_experts_key(model.type).name] = has_experts ? moe.num_experts : 0;
  if (has_experts) {
    json["num_experts_per_tok"] = moe.top_k;
    json["moe_intermediate_size"] = moe.expert_dim;
    json["norm_topk_prob"] = moe.normalise_weights;
    json["shared_expert_intermediate_size"] = written_shared_dim(moe);
    write_dense_layers(json, layer_kinds(config));
  }
  json[kNextnKey.name] = model.num_nextn_predict_layers;
}

void require_qwen_module(Fit& fit, const ModelConfig& config) {
  fit.require(config.mtp.num_modules() < 2, "model.mtp.shared", "one module for all depths");
  if (config.mtp.depth == 0) return;
  const std::vector<LayerSpec> layers = prediction_layer_specs(config);
  fit.require(layers.size() == 1 && layers.front().parts.size() == 2 &&
                  layers.front().parts.front().kind == PartKind::kGqa &&
                  has_kind(config, layers.front().parts.back().kind),
              "model.mtp.layers", "a module of one layer of attention, as the model's");
}

void require_qwen3_next(Fit& fit, const ModelConfig& config, ModelType /*type*/) {
  require_mixed_layers(fit, config, {kQwenRecurrent, kQwenAttention});
  fit.require(has_kind(config, PartKind::kGqa), "model.layers", "some layer of attention");
  fit.require(config.zero_centred_norms, "model.zero_centred_norms", "zero-centred norms");
  fit.require(config.activation == Activation::kSwiGlu, "model.activation", "swiglu");
  require_qwen_module(fit, config);
  if (has_kind(config, PartKind::kGqa)) {
    require_gqa(fit, config, qwen3_next_traits());
    fit.require(config.gqa.output_gate, "model.gqa.output_gate", "a gate of attention's output");
    fit.require(!config.gqa.sinks, "model.gqa.sinks", "no sinks");
  }
  if (!has_kind(config, PartKind::kMoe)) return;
  const MoeConfig& moe = config.moe;
  require_softmax_router(fit, moe);
  fit.require(moe.num_shared_experts > 0, "model.moe.num_shared_experts", "shared experts");
  fit.require(moe.shared_gate, "model.moe.shared_gate", "a gate of its shared experts");
  fit.require(!moe.biases, "model.moe.biases", "no biases of routers and experts");
  fit.require(moe.latent_dim == 0, "model.moe.latent_dim", "experts that read the residual stream");
}

}  // namespace

TypeText qwen3_next_text() { return {read_qwen3_next, write_qwen3_next, require_qwen3_next}; }

}  // namespace nmoe
