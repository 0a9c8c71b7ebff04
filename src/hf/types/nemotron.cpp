// Nemotron-H and Nemotron 3: layers of one part each, Mamba-2, grouped-query attention without rotation, squared-ReLU
// MLPs, or DeepSeek-V3's routers with squared-ReLU experts, on a latent width or the model's.
//
// NOTE: transformers 5's computation without kernels is wrong beyond one chunk, and clamps steps at time_step_min:
// what is meant is the recurrence that the models were trained with (mamba_ssm, Megatron-Core), which
// scripts/nemotron_fixture.py computes.
#include <algorithm>

#include "hf/config_json_keys.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

// A kind of layer: its letter in a pattern, its name in a list, and what transformers called it before.
struct LayerName {
  char letter;
  std::string_view name, older_name;
  PartSpec part;
};
constexpr LayerName kLayerNames[] = {{'M', "linear_attention", "mamba", {.kind = PartKind::kMamba2, .rotates = false}},
                                     {'*', "full_attention", "attention", {.kind = PartKind::kGqa, .rotates = false}},
                                     {'E', "moe", "moe", {.kind = PartKind::kMoe}},
                                     {'-', "mlp", "mlp", {.kind = PartKind::kDense}}};

// Of a pattern's letters or a list's names.
std::vector<LayerSpec> read_kinds(Keys& keys, std::string_view key, const Json& value) {
  std::vector<LayerSpec> layers;
  const auto add = [&](const auto& matches) {
    const auto* const named = std::ranges::find_if(kLayerNames, matches);
    if (named != std::end(kLayerNames)) layers.push_back({.parts = {named->part}});
    return named != std::end(kLayerNames);
  };
  if (value.is_string()) {
    for (const char letter : value.get<std::string>()) {
      if (!add([letter](const LayerName& each) { return each.letter == letter; })) {
        throw keys.error(key, fmt::format("'{}' is none of the layers M, *, E and -", letter));
      }
    }
  } else {
    for (const Json& kind : value.is_array() ? value : Json::array({value})) {
      if (!add([&kind](const LayerName& each) { return kind == each.name || kind == each.older_name; })) {
        throw keys.error(key, fmt::format("{} is no kind of layer", kind.dump()));
      }
    }
  }
  if (layers.empty()) throw keys.error(key, "has no layers");
  return layers;
}

// By whichever of these keys is there; those that are must agree. Empty: none is.
std::vector<LayerSpec> read_layers_by(Keys& keys, std::initializer_list<std::string_view> names) {
  std::vector<LayerSpec> layers;
  for (const std::string_view name : names) {
    const Json* value = keys.find(name);
    if (value == nullptr) continue;
    const std::vector<LayerSpec> said = read_kinds(keys, name, *value);
    if (!layers.empty() && said != layers) {
      throw keys.error(name, fmt::format("{} says otherwise", *names.begin()), "keep one of the two keys");
    }
    layers = said;
  }
  return layers;
}

std::string letters_of(const std::vector<LayerSpec>& layers) {
  std::string letters;
  for (const LayerSpec& layer : layers) {
    letters += std::ranges::find(kLayerNames, layer.parts.front().kind, [](const LayerName& each) {
                 return each.part.kind;
               })->letter;
  }
  return letters;
}

void read_layers(Keys& keys, ModelConfig& config) {
  const std::vector<LayerSpec> layers =
      read_layers_by(keys, {"hybrid_override_pattern", "layers_block_type", "layer_types"});
  if (layers.empty()) throw keys.error("hybrid_override_pattern", "is missing, and so is layers_block_type");
  config.num_layers = std::ssize(layers);
  config.layers = write_layer_pattern(layers);
  if (keys.at_least(1, {"num_hidden_layers"}, config.num_layers) != config.num_layers) {
    throw keys.error("num_hidden_layers", fmt::format("the pattern has {}", config.num_layers),
                     "correct the number: transformers goes by the pattern");
  }
}

// Absent, no limit; so is what transformers writes for an infinity.
void read_step_limit(Keys& keys) {
  const KeyNames names = {"time_step_limit", "mamba_dt_limit"};
  const Json* limit = keys.find(names);
  if (limit == nullptr) return;
  const auto is_infinite = [](const Json& value) {
    return value == "Infinity" || value == Json{{"__float__", "Infinity"}};
  };
  if (limit->is_array() && limit->size() == 2 && limit->at(0) == 0.0 && is_infinite(limit->at(1))) return;
  keys.lacks(keys.has(names.name) ? names.name : names.alias,
             "steps are not clamped here; only [0, Infinity] is supported");
}

void read_mamba2(Keys& keys, Mamba2Config& mamba2) {
  mamba2.num_heads = keys.at_least(1, {"mamba_num_heads"}, 128);
  mamba2.head_dim = keys.at_least(1, {"mamba_head_dim"}, 64);
  mamba2.state_dim = keys.at_least(1, {"ssm_state_size"}, 128);
  mamba2.num_groups = keys.at_least(1, {"n_groups", "mamba_n_groups"}, 8);
  mamba2.conv_width = keys.at_least(1, {"conv_kernel", "mamba_d_conv"}, 4);
  mamba2.chunk = keys.at_least(1, {"chunk_size", "mamba_chunk_size"}, 128);
  keys.find(KeyNames{"time_step_min", "mamba_dt_min"});
  keys.find(KeyNames{"time_step_max", "mamba_dt_max"});
  mamba2.step_min = keys.positive(keys.has("mamba_dt_min") ? "mamba_dt_min" : "time_step_min", mamba2.step_min);
  mamba2.step_max = keys.positive(keys.has("mamba_dt_max") ? "mamba_dt_max" : "time_step_max", mamba2.step_max);
  read_step_limit(keys);
  keys.only("mamba_hidden_act", "silu");
  keys.only("use_conv_bias", true, "the convolution has biases");
  keys.only("mamba_conv_bias", true, "the convolution has biases");
  for (const char* key : {"mamba_proj_bias", "use_bias"})
    keys.only(key, false, "projections of Mamba-2 have no biases");
  // The width of the scan is that of its heads; the least initial step concerns random weights only; states are F32.
  for (const char* key : {"expand", "mamba_expand", "time_step_floor", "mamba_dt_init_floor", "use_mamba_kernels",
                          "mamba_ssm_cache_dtype"}) {
    keys.ignore(key);
  }
}

void read_experts(Keys& keys, const HfModel& model, MoeConfig& moe) {
  moe.num_experts = keys.at_least(1, routed_experts_key(model.type), 8);
  moe.top_k = keys.at_least(1, {"num_experts_per_tok"}, 2);
  moe.expert_dim = keys.at_least(1, {"moe_intermediate_size"}, 7688);
  moe.latent_dim = keys.at_least(1, {"moe_latent_size"}, 0);
  moe.num_shared_experts = 1;
  moe.shared_dim = keys.at_least(1, {"moe_shared_expert_intermediate_size"}, 7688);
  keys.only("n_shared_experts", 1,
            "transformers makes one of moe_shared_expert_intermediate_size whatever it says, other programs do not");
  moe.score = ScoreFunction::kSigmoid;
  moe.normalise_weights = keys.flag("norm_topk_prob", true);
  moe.routed_scale = keys.positive("routed_scaling_factor", 1.0);
  if (keys.has("n_group") || keys.has("topk_group")) read_groups(keys, moe);
  keys.ignore("moe_shared_expert_overlap");
}

bool has_kind(const ModelConfig& config, PartKind kind) { return count_parts(layer_specs(config), kind) > 0; }

void read_nemotron(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  read_layers(keys, config);
  config.activation = Activation::kReluSquared;
  keys.only("mlp_hidden_act", "relu2");
  keys.find(KeyNames{"layer_norm_epsilon", "norm_eps"});
  config.norm_eps = keys.positive(keys.has("layer_norm_epsilon") ? "layer_norm_epsilon" : "norm_eps", 1e-5);
  config.attention = PartKind::kGqa;
  config.num_heads = keys.at_least(1, {"num_attention_heads"}, 32);
  config.gqa.num_kv_heads =
      keys.at_least(1, {"num_key_value_heads"}, keys.says_null("num_key_value_heads") ? config.num_heads : 8);
  config.gqa.head_dim = keys.at_least(1, {"head_dim", "attention_head_dim"}, 128);
  config.gqa.bias = keys.flag("attention_bias", false) ? AttentionBias::kAll : AttentionBias::kNone;
  keys.none("sliding_window", "transformers' attention does not look at it");
  config.dense_dim = keys.at_least(1, {"intermediate_size"}, 21504);
  read_mamba2(keys, config.mamba2);
  MoeConfig experts;
  read_experts(keys, model, experts);
  config.moe = experts;
  if (!has_kind(config, PartKind::kMoe)) config.moe = {.num_experts = 0};
  keys.only("mlp_bias", false, "MLPs have no biases here");
  keys.only("hidden_dropout", 0.0);
  keys.only("residual_in_fp32", false, "the residual stream has the dtype of all else");
  model.num_nextn_predict_layers = keys.at_least(0, kNextnKey, 0);
  const std::vector<LayerSpec> module = read_layers_by(keys, {"mtp_hybrid_override_pattern", "mtp_layers_block_type"});
  model.prediction_layers = module.empty() ? "gqa_nope, moe" : write_layer_pattern(module);
  // Of no effect: nothing rotates, and the rest concerns random weights and generation.
  for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor",
                          "rescale_prenorm_residual", "num_logits_to_keep"}) {
    keys.ignore(key);
  }
}

void write_mamba2(Json& json, const Mamba2Config& mamba2) {
  json["mamba_num_heads"] = mamba2.num_heads;
  json["mamba_head_dim"] = mamba2.head_dim;
  json["ssm_state_size"] = mamba2.state_dim;
  json["n_groups"] = mamba2.num_groups;
  json["conv_kernel"] = mamba2.conv_width;
  json["chunk_size"] = mamba2.chunk;
  json["time_step_min"] = mamba2.step_min;
  json["time_step_max"] = mamba2.step_max;
}

void write_experts(Json& json, const HfModel& model) {
  const MoeConfig& moe = model.config.moe;
  json[routed_experts_key(model.type).name] = moe.num_experts;
  json["num_experts_per_tok"] = moe.top_k;
  json["moe_intermediate_size"] = moe.expert_dim;
  json["moe_latent_size"] = moe.latent_dim > 0 ? Json(moe.latent_dim) : Json(nullptr);
  json["n_shared_experts"] = 1;
  json["moe_shared_expert_intermediate_size"] = written_shared_dim(moe);
  json["norm_topk_prob"] = moe.normalise_weights;
  json["routed_scaling_factor"] = moe.routed_scale;
  write_groups(json, moe);
}

// What concerns only kinds of layers that the model has not is left as it is, or to transformers' defaults.
void write_nemotron(Json& json, const HfModel& model) {
  const ModelConfig& config = model.config;
  json["hybrid_override_pattern"] = letters_of(layer_specs(config));
  json["layer_norm_epsilon"] = config.norm_eps;
  json["mlp_hidden_act"] = "relu2";
  if (has_kind(config, PartKind::kGqa)) {
    json["num_attention_heads"] = config.num_heads;
    write_gqa(json, config);
    json["attention_bias"] = config.gqa.bias == AttentionBias::kAll;
  }
  if (has_kind(config, PartKind::kDense)) json["intermediate_size"] = config.dense_dim;
  if (has_kind(config, PartKind::kMamba2)) write_mamba2(json, config.mamba2);
  if (has_kind(config, PartKind::kMoe)) write_experts(json, model);
  json[kNextnKey.name] = model.num_nextn_predict_layers;
  if (config.mtp.depth > 0) {
    json["mtp_hybrid_override_pattern"] = letters_of(prediction_layer_specs(config));
  } else if (model.num_nextn_predict_layers > 0) {
    json["mtp_hybrid_override_pattern"] = letters_of(read_layer_pattern(model.prediction_layers).layers);
  }
}

void require_layer_kinds(Fit& fit, const ModelConfig& config) {
  const std::vector<LayerSpec> layers = all_layer_specs(config);
  fit.require(std::ranges::all_of(layers, [](const LayerSpec& layer) { return layer.parts.size() == 1; }),
              "model.layers", "layers of one part each");
  bool same_widths = true, plain = true;
  for (const PartSpec& part : parts_of(layers)) {
    if (part.kind == PartKind::kDense) same_widths = same_widths && part.hidden == config.dense_dim;
    if (part.kind == PartKind::kMoe) same_widths = same_widths && part.hidden == config.moe.expert_dim;
    if (is_mixer(part.kind)) {
      const bool is_known = part.kind == PartKind::kMamba2 || part.kind == PartKind::kGqa;
      plain = plain && is_known && !part.rotates && part.window == 0;
    }
  }
  fit.require(same_widths, "model.layers", "MLPs of one width, and experts of one");
  fit.require(plain, "model.layers", "mamba2 and gqa_nope as mixers, without windows");
}

void require_nemotron(Fit& fit, const ModelConfig& config, ModelType /*type*/) {
  const MoeConfig& moe = config.moe;
  require_layer_kinds(fit, config);
  fit.require(config.mtp.num_modules() < 2, "model.mtp.shared", "one module for all depths");
  if (has_kind(config, PartKind::kDense) || has_kind(config, PartKind::kMoe)) {
    fit.require(config.activation == Activation::kReluSquared, "model.activation", "relu_squared");
  }
  if (has_kind(config, PartKind::kGqa)) {
    fit.require(!config.gqa.qk_norm, "model.gqa.qk_norm", "no norms of queries and keys");
    fit.require(config.gqa.bias != AttentionBias::kQkv, "model.gqa.bias", "biases of all four, or none");
    fit.require(!config.gqa.sinks, "model.gqa.sinks", "no sinks");
  }
  if (!has_kind(config, PartKind::kMoe)) return;
  fit.require(moe.num_shared_experts > 0, "model.moe.num_shared_experts", "shared experts");
  fit.require(!moe.shared_gate, "model.moe.shared_gate", "no gate of shared experts");
  fit.require(!moe.biases, "model.moe.biases", "no biases of routers and experts");
  fit.require(moe.score == ScoreFunction::kSigmoid, "model.moe.score", "sigmoid");
}

}  // namespace

TypeText nemotron_text() { return {read_nemotron, write_nemotron, require_nemotron}; }

}  // namespace nmoe
