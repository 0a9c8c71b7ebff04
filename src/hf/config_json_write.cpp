#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "config/layers.h"
#include "config/schema.h"
#include "hf/config_json.h"
#include "hf/config_json_keys.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

// The same model without model.layers; where it cannot be said without, one with the first mixer everywhere.
ModelConfig without_layers_key(const ModelConfig& config) {
  if (auto same = without_pattern(config)) return *same;
  ModelConfig near = config;
  near.layers.clear();
  const std::vector<PartSpec> parts = parts_of(layer_specs(config));
  near.attention = std::ranges::find_if(parts, is_mixer, &PartSpec::kind)->kind;
  near.window = 0;
  return near;
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
               {"num_attention_heads", config.num_heads},
               {"hidden_act", "silu"},
               {"rms_norm_eps", config.norm_eps},
               {"tie_word_embeddings", config.tied_head},
               {"max_position_embeddings", config.max_positions},
               {"bos_token_id", model.bos_id ? Json(*model.bos_id) : Json(nullptr)},
               {"eos_token_id", eos_json(model.eos_ids)}};
  write_rope(json, model.type, config);
  text_of(model.type).write(json, model);
  if (!model.dtype.empty()) json[kDtypeKey.name] = model.dtype;
  if (model.fp8) {
    json["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {kHfFp8Block, kHfFp8Block}}};
  }
  return json;
}

// Other keys that say what `key` does.
std::vector<std::string_view> rivals_of(std::string_view key, ModelType type) {
  if (is_rope_key(key)) return {std::begin(kRopeKeys), std::end(kRopeKeys)};
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
  if (is_rope_key(key)) {  // which takes its rivals with it, so all of them are written anew
    for (const std::string_view rope : kRopeKeys) {
      if (wanted.contains(rope)) json[std::string(rope)] = wanted.at(std::string(rope));
    }
  } else if (wanted.contains(name)) {
    json[name] = wanted.at(name);
  } else {
    json.erase(name);
  }
}

}  // namespace

std::vector<std::string> obstacles_to(const ModelConfig& given, ModelType type) {
  const ModelConfig config = without_layers_key(given);
  const std::string_view name = model_type_name(type);
  Fit fit(config, name);
  fit.require((config.moe.num_experts == 0) == is_dense(type), "model.moe.num_experts",
              is_dense(type) ? "no experts" : "experts");
  fit.require(config.activation == Activation::kSwiGlu, "model.activation", "swiglu");
  fit.require(config.window == 0, "model.window", "no windows");
  fit.require(config.moe.latent_dim == 0, "model.moe.latent_dim", "experts that read the residual stream");
  text_of(type).require(fit, config, type);
  require_rope(fit, config);
  std::vector<std::string> obstacles = std::move(fit).obstacles();
  if (!without_pattern(given)) {
    obstacles.insert(
        obstacles.begin(),
        fmt::format(
            "model.layers = {}: {} has one kind of attention, rotary positions, no windows, both attention and a "
            "feed-forward part in every layer, dense layers before those with experts, and one "
            "width of each",
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
  constexpr std::array<ModelType, 12> kByPreference = {
      ModelType::kDeepseekV3, ModelType::kDeepseekV2, ModelType::kQwen3Moe,  ModelType::kMixtral,
      ModelType::kOlmoe,      ModelType::kQwen2Moe,   ModelType::kMinimaxM2, ModelType::kDots1,
      ModelType::kGlm4Moe,    ModelType::kErnie45Moe, ModelType::kQwen3,     ModelType::kLlama};
  const auto* const fits =
      std::ranges::find_if(kByPreference, [&](ModelType type) { return obstacles_to(given, type).empty(); });
  if (fits != kByPreference.end()) return *fits;
  const ModelConfig config = without_layers_key(given);
  if (config.attention == PartKind::kGqa && config.moe.num_experts > 0) return ModelType::kQwen3Moe;
  if (config.attention == PartKind::kGqa) return config.gqa.qk_norm ? ModelType::kQwen3 : ModelType::kLlama;
  return config.moe.score == ScoreFunction::kSigmoid ? ModelType::kDeepseekV3 : ModelType::kDeepseekV2;
}

std::string to_config_json(const HfModel& given, std::string_view base) {
  if (const auto obstacles = obstacles_to(given.config, given.type); !obstacles.empty()) {
    throw not_expressible(given.type, obstacles);
  }
  HfModel model = given;
  model.config = without_layers_key(given.config);
  NMOE_CHECK(model.config.vocab_size > 0 && model.config.max_positions > 0, "vocab_size {}, max_positions {}",
             model.config.vocab_size, model.config.max_positions);
  const Json wanted = canonical_json(model);
  Json json = wanted;
  if (!base.empty()) {
    const HfModel original = from_config_json(base, "config.json");
    NMOE_CHECK(original.type == model.type, "{} from {}", model_type_name(model.type), model_type_name(original.type));
    const Json had = canonical_json(original);
    json = parse_json<Json>(base);
    for (const auto& [key, value] : wanted.items()) {
      if (!had.contains(key) || had.at(key) != value) replace(json, key, wanted, model.type);
    }
    for (const auto& [key, value] : had.items()) {
      if (!wanted.contains(key)) replace(json, key, wanted, model.type);
    }
  }
  std::string text = json.dump(2) + "\n";
  NMOE_CHECK(canonical_json(from_config_json(text, "config.json")) == wanted, "{} reads back differently", text);
  return text;
}

}  // namespace nmoe
