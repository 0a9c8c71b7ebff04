#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "config/layers.h"
#include "config/schema.h"
#include "hf/config_json.h"
#include "hf/config_json_keys.h"
#include "hf/tensor_map.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

// The same model with all that its layers have in common in keys of their own, as in a model without model.layers:
// that only says which have experts, and windows. Nothing where layers differ in more.
std::optional<ModelConfig> with_common_keys(const ModelConfig& config) {
  if (auto same = without_pattern(config)) return same;
  const std::vector<LayerSpec> layers = layer_specs(config);
  if (!is_attention(layers.front().parts.front().kind)) return std::nullopt;
  const auto has_experts = [](const LayerSpec& layer) { return layer.parts.back().kind == PartKind::kMoe; };
  ModelConfig common = config;
  common.num_layers = std::ssize(layers);
  common.num_dense_layers = std::ranges::find_if(layers, has_experts) - layers.begin();
  common.window = 0;
  common.attention = layers.front().parts.front().kind;
  for (const LayerSpec& layer : layers) {
    if (layer.parts.size() != 2) return std::nullopt;
    const PartSpec& hidden = layer.parts.back();
    (hidden.kind == PartKind::kDense ? common.dense_dim : common.moe.expert_dim) = hidden.hidden;
  }
  for (const LayerSpec& layer : layers) {
    const PartSpec &mixer = layer.parts.front(), &hidden = layer.parts.back();
    const int64_t width = hidden.kind == PartKind::kDense ? common.dense_dim : common.moe.expert_dim;
    if (mixer.kind != common.attention || !mixer.rotates || hidden.hidden != width) return std::nullopt;
  }
  std::vector<LayerSpec> plain = layers;
  for (LayerSpec& layer : plain) layer.parts.back().hidden = 0;
  common.layers = write_layer_pattern(plain);
  return common;
}

// Where layers differ in more, a model with the first attention everywhere.
ModelConfig with_equal_layers(const ModelConfig& config) {
  if (auto same = with_common_keys(config)) return *same;
  ModelConfig near = config;
  near.layers.clear();
  const std::vector<PartSpec> parts = parts_of(layer_specs(config));
  const auto attention = std::ranges::find_if(parts, is_attention, &PartSpec::kind);
  near.attention = attention == parts.end() ? PartKind::kGqa : attention->kind;
  near.window = 0;
  return near;
}

// What layers of the type have in common, of what may be each layer's own.
void require_layers(Fit& fit, const ModelConfig& config, ModelType type) {
  const LayerFreedom freedom = layer_freedom(type);
  const LayerKinds kinds = layer_kinds(config);
  const std::set<int64_t> windows(kinds.windows.begin(), kinds.windows.end());  // 0: none
  const bool has_windows = config.window > 0 || windows.size() > 1 || !windows.contains(0);
  const std::string_view key = config.layers.empty() ? "model.window" : "model.layers";
  using Windows = LayerFreedom::Windows;
  fit.require(!has_windows || freedom.windows != Windows::kNone, key, "no windows");
  fit.require(windows.size() < 2 || freedom.windows != Windows::kAllLayers, key, "one window of all layers, or none");
  fit.require(windows.size() < (windows.contains(0) ? 3 : 2) || freedom.windows != Windows::kAny, key,
              "windows of one size");
  fit.require(std::ranges::is_sorted(kinds.dense, std::ranges::greater()) || freedom.dense, "model.layers",
              "dense layers before those with experts");
}

bool is_dense(ModelType type) { return type == ModelType::kLlama || type == ModelType::kQwen3; }

Json eos_json(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? Json(ids[0]) : Json(ids);
}

// The one JSON of a model: equal models give equal ones.
Json canonical_json(const HfModel& model) {
  const ModelConfig& config = model.config;
  Json json = {{"architectures", {architecture_name(model.type)}},
               {"model_type", model_type_name(model.type)},
               {"vocab_size", config.vocab_size},
               {"hidden_size", config.dim},
               {"num_hidden_layers", config.num_layers},
               {"tie_word_embeddings", config.tied_head},
               {"max_position_embeddings", config.max_positions},
               {"bos_token_id", model.bos_id ? Json(*model.bos_id) : Json(nullptr)},
               {"eos_token_id", eos_json(model.eos_ids)}};
  if (!is_hybrid(model.type)) {
    json["num_attention_heads"] = config.num_heads;
    json["hidden_act"] = "silu";
    json["rms_norm_eps"] = config.norm_eps;
    write_rope(json, model.type, config);
  }
  text_of(model.type).write(json, model);
  if (!model.dtype.empty()) json[kDtypeKey.name] = model.dtype;
  if (model.format == HfFormat::kMxFp4) {
    json["quantization_config"] = {
        {"quant_method", "mxfp4"},
        {"modules_to_not_convert",
         {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}}};
  }
  if (model.format == HfFormat::kFp8) {
    json["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {kHfFp8Block, kHfFp8Block}}};
    if (model.scales == HfScales::kPowersOfTwo) json["quantization_config"]["scale_fmt"] = "ue8m0";
  }
  return json;
}

// Other keys that say what `key` does.
std::vector<std::string_view> rivals_of(std::string_view key, ModelType type) {
  if (is_hybrid(type)) {
    std::vector<std::string_view> rivals;
    for (const KeyNames& names : kNemotronKeys) {
      if (key == names.name) rivals.push_back(names.alias);
    }
    if (!rivals.empty()) return rivals;
  } else if (is_rope_key(key)) {
    return {std::begin(kRopeKeys), std::end(kRopeKeys)};
  }
  for (const KeyNames& names : {kDtypeKey, kNextnKey, routed_experts_key(type)}) {
    if (key == names.name) return {names.alias};
  }
  return {};
}

void replace(Json& json, std::string_view key, const Json& wanted, ModelType type) {
  const std::string name(key);
  for (const std::string_view rival : rivals_of(key, type)) {
    if (rival != key) json.erase(std::string(rival));
  }
  if (is_rope_key(key) && !is_hybrid(type)) {  // which takes its rivals with it, so all of them are written anew
    for (const std::string_view rope : kRopeKeys) {
      if (wanted.contains(rope)) json[std::string(rope)] = wanted.at(std::string(rope));
    }
  } else if (wanted.contains(name)) {
    json[name] = wanted.at(name);
  } else {
    json.erase(name);
  }
}

// What no type has yet.
void require_plain(Fit& fit, const ModelConfig& config) {
  fit.require(!config.zero_centred_norms, "model.zero_centred_norms", "norms that multiply by their weights");
  if (count_parts(layer_specs(config), PartKind::kGqa) > 0) {
    fit.require(!config.gqa.output_gate, "model.gqa.output_gate", "attention without a gate");
  }
}

// What a type whose layers are of one part each has not.
std::vector<std::string> obstacles_to_hybrid(const ModelConfig& config, ModelType type) {
  Fit fit(config, model_type_name(type));
  require_plain(fit, config);
  text_of(type).require(fit, config, type);
  return std::move(fit).obstacles();
}

}  // namespace

std::vector<std::string> obstacles_to(const ModelConfig& given, ModelType type) {
  if (is_hybrid(type)) return obstacles_to_hybrid(given, type);
  const ModelConfig config = with_equal_layers(given);
  const std::string_view name = model_type_name(type);
  Fit fit(config, name);
  fit.require((config.moe.num_experts == 0) == is_dense(type), "model.moe.num_experts",
              is_dense(type) ? "no experts" : "experts");
  const bool is_gpt_oss = type == ModelType::kGptOss;
  fit.require(config.activation == (is_gpt_oss ? Activation::kClampedSwiGlu : Activation::kSwiGlu), "model.activation",
              is_gpt_oss ? "clamped_swiglu" : "swiglu");
  if (config.attention == PartKind::kGqa) {
    fit.require(config.gqa.sinks == is_gpt_oss, "model.gqa.sinks", is_gpt_oss ? "sinks" : "no sinks");
  }
  fit.require(config.moe.biases == is_gpt_oss, "model.moe.biases",
              is_gpt_oss ? "biases of routers and experts" : "no biases of routers and experts");
  fit.require(config.moe.latent_dim == 0, "model.moe.latent_dim", "experts that read the residual stream");
  fit.require(config.mtp.depth == 0 || predicts_further(type), "model.mtp.depth", "no further tokens to predict");
  fit.require(config.mtp.layers.empty(), "model.mtp.layers", "one layer in a module, as the model's last");
  require_plain(fit, config);
  require_layers(fit, config, type);
  text_of(type).require(fit, config, type);
  require_rope(fit, config);
  std::vector<std::string> obstacles = std::move(fit).obstacles();
  if (!with_common_keys(given)) {
    obstacles.insert(
        obstacles.begin(),
        fmt::format(
            "model.layers = {}: {} has one kind of attention, rotary positions, both attention and a feed-forward part "
            "in every layer, and one width of each",
            to_toml(given.layers), name));
  }
  return obstacles;
}

Error not_expressible(ModelType type, const std::vector<std::string>& obstacles) {
  return usage_error(fmt::format("transformers' {} is the type nearest to this model, and not the same:\n  {}",
                                 model_type_name(type), fmt::join(obstacles, "\n  ")),
                     "train a model with the values that the type has; n config --template mla-moe prints the "
                     "configuration of one that can be exported");
}

ModelType nearest_type(const ModelConfig& given) {
  // The first that computes the same: where several do, the one whose name says most. Kimi-K2 and GLM-4-MoE-Lite are
  // DeepSeek-V3 by other names.
  constexpr std::array<ModelType, 14> kByPreference = {
      ModelType::kDeepseekV3, ModelType::kDeepseekV2, ModelType::kQwen3Moe,  ModelType::kMixtral,
      ModelType::kOlmoe,      ModelType::kQwen2Moe,   ModelType::kMinimaxM2, ModelType::kDots1,
      ModelType::kGlm4Moe,    ModelType::kErnie45Moe, ModelType::kQwen3,     ModelType::kLlama,
      ModelType::kGptOss,     ModelType::kNemotronH};
  const auto* const fits =
      std::ranges::find_if(kByPreference, [&](ModelType type) { return obstacles_to(given, type).empty(); });
  if (fits != kByPreference.end()) return *fits;
  if (count_parts(layer_specs(given), PartKind::kMamba2) > 0) return ModelType::kNemotronH;
  const ModelConfig config = with_equal_layers(given);
  if (config.attention == PartKind::kGqa && config.gqa.sinks) return ModelType::kGptOss;
  if (config.attention == PartKind::kGqa && config.moe.num_experts > 0) return ModelType::kQwen3Moe;
  if (config.attention == PartKind::kGqa) return config.gqa.qk_norm ? ModelType::kQwen3 : ModelType::kLlama;
  return config.moe.score == ScoreFunction::kSigmoid ? ModelType::kDeepseekV3 : ModelType::kDeepseekV2;
}

std::string to_config_json(const HfModel& given, std::string_view base) {
  if (const auto obstacles = obstacles_to(given.config, given.type); !obstacles.empty()) {
    throw not_expressible(given.type, obstacles);
  }
  HfModel model = given;
  if (is_hybrid(given.type)) {
    model.config.num_layers = std::ssize(layer_specs(given.config));
  } else {
    model.config = with_equal_layers(given.config);
  }
  NMOE_CHECK(model.config.vocab_size > 0 && model.config.max_positions > 0, "vocab_size {}, max_positions {}",
             model.config.vocab_size, model.config.max_positions);
  const Json wanted = canonical_json(model);
  Json json = wanted;
  if (!base.empty()) {
    const HfModel original = from_config_json(base, "config.json");
    NMOE_CHECK(original.type == model.type, "{} from {}", model_type_name(model.type), model_type_name(original.type));
    const Json had = canonical_json(original);
    json = parse_json<Json>(with_quoted_infinity(base));
    for (const auto& [key, value] : wanted.items()) {
      if (!had.contains(key) || had.at(key) != value) replace(json, key, wanted, model.type);
    }
    for (const auto& [key, value] : had.items()) {
      if (!wanted.contains(key)) replace(json, key, wanted, model.type);
    }
  }
  std::string text = json.dump(2) + "\n";
  if (with_quoted_infinity(base) != base) {  // as it was
    constexpr std::string_view kQuoted = "\"Infinity\"";
    for (size_t at = text.find(kQuoted); at != std::string::npos; at = text.find(kQuoted, at)) {
      text.replace(at, kQuoted.size(), kQuoted.substr(1, kQuoted.size() - 2));
    }
  }
  NMOE_CHECK(canonical_json(from_config_json(text, "config.json")) == wanted, "{} reads back differently", text);
  return text;
}

}  // namespace nmoe
