// Kimi Linear: layers of Kimi Delta Attention, and of latent attention that does not rotate, each followed by an MLP or
// by DeepSeek-V3's experts (sigmoid scores, a selection bias) under Mixtral's names.
//
// transformers has no such type: what is meant is what the models' own code computes (modeling_kimi.py of their
// releases).
#include <algorithm>

#include "hf/config_json_keys.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

constexpr PartSpec kKimiRecurrent = {.kind = PartKind::kKda, .rotates = false};
constexpr PartSpec kKimiAttention = {.kind = PartKind::kMla, .rotates = false};

// The layers that a list names, from 1.
std::vector<char> read_listed(Keys& keys, std::string_view key, int64_t num_layers) {
  std::vector<char> listed(static_cast<size_t>(num_layers));
  const Json* layers = keys.find(key);
  if (layers == nullptr || !layers->is_array()) throw keys.error(key, "must be a list of layers");
  for (const Json& layer : *layers) {
    if (!layer.is_number_integer() || layer < 1 || layer > num_layers) {
      throw keys.error(key, fmt::format("{} is no layer from 1 to {}", layer.dump(), num_layers));
    }
    listed[static_cast<size_t>(layer.get<int64_t>() - 1)] = 1;
  }
  return listed;
}

// Sizes of the recurrent layers, and which they are.
std::vector<PartSpec> read_linear_attention(Keys& file, ModelConfig& config) {
  const Json* value = file.find("linear_attn_config");
  if (value == nullptr || !value->is_object()) {
    throw file.error("linear_attn_config", "must be an object",
                     "models without layers of Kimi Delta Attention are not supported");
  }
  Keys keys(*value, file.lacking(), "linear_attn_config.");
  config.kda.num_heads = keys.at_least(1, {"num_heads"});
  config.kda.head_dim = keys.at_least(1, {"head_dim"});
  config.kda.conv_width = keys.at_least(1, {"short_conv_kernel_size"});
  const std::vector<char> recurrent = read_listed(keys, "kda_layers", config.num_layers),
                          full = read_listed(keys, "full_attn_layers", config.num_layers);
  std::vector<PartSpec> mixers;
  for (size_t i = 0; i < recurrent.size(); ++i) {
    if (recurrent[i] == full[i]) {
      throw keys.error("kda_layers",
                       fmt::format("layer {} is in {} of kda_layers and full_attn_layers", i + 1,
                                   recurrent[i] != 0 ? "both" : "none"),
                       "name each layer in one of the two lists: programs disagree on others");
    }
    mixers.push_back(recurrent[i] != 0 ? kKimiRecurrent : kKimiAttention);
  }
  keys.finish();
  return mixers;
}

void read_latent_attention(Keys& keys, ModelConfig& config) {
  config.attention = PartKind::kMla;
  MlaConfig& mla = config.mla;
  keys.only("mla_use_nope", true, "latent attention of the type does not rotate");
  if (!keys.has("mla_use_nope")) {
    throw keys.error("mla_use_nope", "is missing, which means false",
                     "correct config.json if the model was trained without rotation");
  }
  keys.none("q_lora_rank", "queries of the type have no latent");
  mla.q_lora_rank = 0;
  mla.kv_lora_rank = keys.at_least(1, {"kv_lora_rank"});
  mla.qk_nope_head_dim = keys.at_least(1, {"qk_nope_head_dim"});
  mla.qk_rope_head_dim = keys.at_least(1, {"qk_rope_head_dim"});
  mla.v_head_dim = keys.at_least(1, {"v_head_dim"});
  mla.norm_eps = kHfLatentNormEps;
  keys.only("num_key_value_heads", config.num_heads, "every head of latent attention has its own keys and values");
  // Nothing looks at them: heads have the sizes above, and nothing rotates.
  for (const char* key : {"head_dim", "rope_theta", "rope_scaling"}) keys.ignore(key);
}

void read_kimi_experts(Keys& keys, const HfModel& model, MoeConfig& moe) {
  moe.num_experts = keys.at_least(2, routed_experts_key(model.type));
  moe.top_k = keys.at_least(1, {"num_experts_per_token"});
  moe.expert_dim = keys.at_least(1, {"moe_intermediate_size"});
  moe.num_shared_experts = keys.at_least(0, {"num_shared_experts"}, 0);
  keys.only("moe_router_activation_func", "sigmoid", "the selection bias is of sigmoid scores here");
  moe.score = ScoreFunction::kSigmoid;
  moe.normalise_weights = keys.flag("moe_renormalize", true);
  if (moe.top_k == 1 && moe.normalise_weights) {
    keys.lacks("num_experts_per_token", "the type does not divide a single expert's weight by itself, nmoe would");
  }
  moe.routed_scale = keys.positive("routed_scaling_factor", 1.0);
  keys.only("use_grouped_topk", true, "programs disagree on what else it means");
  // The groups that a token may not choose get scores of 0 there, and are never chosen here.
  keys.only("num_expert_group", 1, "the models' own code may choose experts of other groups, nmoe does not");
  keys.only("topk_group", 1, "the models' own code may choose experts of other groups, nmoe does not");
}

void read_kimi_linear(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  const std::vector<PartSpec> mixers = read_linear_attention(keys, config);
  read_latent_attention(keys, config);
  config.dense_dim = keys.at_least(1, {"intermediate_size"});
  MoeConfig experts;
  read_kimi_experts(keys, model, experts);
  config.moe = experts;
  const int64_t num_dense = keys.at_least(0, {"first_k_dense_replace"}, 0);
  keys.only("moe_layer_freq", 1, "in nmoe every layer behind the dense ones has experts");
  std::vector<LayerSpec> layers;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const PartKind hidden = i >= num_dense ? PartKind::kMoe : PartKind::kDense;
    layers.push_back({.parts = {mixers[static_cast<size_t>(i)], {.kind = hidden}}});
  }
  if (count_parts(layers, PartKind::kMoe) == 0) keys.lacks("first_k_dense_replace", "no layer has experts");
  if (count_parts(layers, PartKind::kKda) == 0 || count_parts(layers, PartKind::kMla) == 0) {
    keys.lacks("linear_attn_config", "models without layers of both kinds are not supported");
  }
  config.layers = write_layer_pattern(layers);
  keys.only(kNextnKey.name, 0, "nmoe does not know the form of the type's modules for further tokens");
}

void write_kimi_linear(Json& json, const HfModel& model) {
  const ModelConfig& config = model.config;
  const MlaConfig& mla = config.mla;
  const MoeConfig& moe = config.moe;
  Json recurrent = Json::array(), full = Json::array();
  const std::vector<LayerSpec> layers = layer_specs(config);
  for (size_t i = 0; i < layers.size(); ++i) {
    (layers[i].parts.front().kind == PartKind::kKda ? recurrent : full).push_back(i + 1);
  }
  json["linear_attn_config"] = {{"num_heads", config.kda.num_heads},
                                {"head_dim", config.kda.head_dim},
                                {"short_conv_kernel_size", config.kda.conv_width},
                                {"kda_layers", recurrent},
                                {"full_attn_layers", full}};
  json["mla_use_nope"] = true;
  json["num_key_value_heads"] = config.num_heads;
  json["q_lora_rank"] = nullptr;
  json["kv_lora_rank"] = mla.kv_lora_rank;
  json["qk_nope_head_dim"] = mla.qk_nope_head_dim;
  json["qk_rope_head_dim"] = mla.qk_rope_head_dim;
  json["v_head_dim"] = mla.v_head_dim;
  json["intermediate_size"] = written_dense_dim(config);
  json["moe_intermediate_size"] = moe.expert_dim;
  json[routed_experts_key(model.type).name] = moe.num_experts;
  json["num_experts_per_token"] = moe.top_k;
  json["num_shared_experts"] = moe.num_shared_experts;
  json["moe_router_activation_func"] = "sigmoid";
  json["moe_renormalize"] = moe.normalise_weights;
  json["routed_scaling_factor"] = moe.routed_scale;
  json["use_grouped_topk"] = true;
  json["num_expert_group"] = 1;
  json["topk_group"] = 1;
  const std::vector<char> dense = layer_kinds(config).dense;
  json["first_k_dense_replace"] = std::ranges::find(dense, 0) - dense.begin();
  json["moe_layer_freq"] = 1;
}

void require_kimi_linear(Fit& fit, const ModelConfig& config, ModelType /*type*/) {
  require_mixed_layers(fit, config, {kKimiRecurrent, kKimiAttention});
  const bool has_both = has_kind(config, PartKind::kKda) && has_kind(config, PartKind::kMla);
  fit.require(has_both, "model.layers", "layers of both kinds");
  fit.require(has_kind(config, PartKind::kMoe), "model.layers", "some layer with experts");
  fit.require(std::ranges::is_sorted(layer_kinds(config).dense, std::ranges::greater()), "model.layers",
              "dense layers before those with experts");
  require_plain_norms(fit, config);
  fit.require(config.activation == Activation::kSwiGlu, "model.activation", "swiglu");
  fit.require(config.mtp.depth == 0, "model.mtp.depth", "no further tokens to predict");
  if (has_kind(config, PartKind::kMla)) {
    fit.require(config.mla.q_lora_rank == 0, "model.mla.q_lora_rank", "no latent of queries");
    fit.require(config.mla.norm_eps == kHfLatentNormEps, "model.mla.norm_eps", fmt::format("{}", kHfLatentNormEps));
  }
  const MoeConfig& moe = config.moe;
  if (!has_kind(config, PartKind::kMoe)) return;
  require_plain_shared_experts(fit, moe, 0);
  fit.require(moe.score == ScoreFunction::kSigmoid, "model.moe.score", "sigmoid");
  fit.require(moe.num_experts > 1, "model.moe.num_experts", "two experts or more");
  fit.require(moe.top_k > 1 || !moe.normalise_weights, "model.moe.normalise_weights",
              "a single expert's weight as it is");
  fit.require(moe.num_groups == 1, "model.moe.num_groups", "no groups of experts");
  fit.require(!moe.biases, "model.moe.biases", "no biases of routers and experts");
  fit.require(moe.latent_dim == 0, "model.moe.latent_dim", "experts that read the residual stream");
}

}  // namespace

TypeText kimi_linear_text() { return {read_kimi_linear, write_kimi_linear, require_kimi_linear}; }

}  // namespace nmoe
