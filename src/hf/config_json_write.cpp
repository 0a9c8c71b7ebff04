#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "config/layers.h"
#include "config/schema.h"
#include "hf/config_json.h"
#include "hf/config_json_keys.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;

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

// Why `config` is no model of a type, key by key.
class Fit {
 public:
  Fit(const ModelConfig& config, std::string_view type) : type_(type) { config_.model = config; }

  void require(bool holds, std::string_view key, std::string_view has) {
    if (holds) return;
    std::string value;
    for (const Field& field : describe(config_)) {
      if (field.key == key) value = to_toml(field.get());
    }
    NMOE_CHECK(!value.empty(), "unknown key {}", key);
    obstacles_.push_back(fmt::format("{} = {}: {} has {}", key, value, type_, has));
  }
  std::vector<std::string> obstacles() && { return std::move(obstacles_); }

 private:
  Config config_;
  std::string_view type_;
  std::vector<std::string> obstacles_;
};

void require_yarn(Fit& fit, const YarnConfig& yarn, ModelType type) {
  if (yarn.factor == 1.0) return;
  if (type == ModelType::kQwen3Moe) {
    fit.require(yarn.mscale == 1.0, "model.yarn.mscale", "1 only");
    fit.require(yarn.mscale_all_dim == 0.0, "model.yarn.mscale_all_dim", "0 only");
  } else {
    fit.require(yarn.mscale_all_dim == 0.0 ? yarn.mscale == 1.0 : yarn.mscale > 0.0, "model.yarn.mscale",
                "1 without mscale_all_dim, and more than 0 with it");
  }
}

void require_gqa(Fit& fit, const ModelConfig& config) {
  fit.require(config.attention == PartKind::kGqa, "model.attention", "grouped-query attention");
  fit.require(config.gqa.qk_norm, "model.gqa.qk_norm", "norms of queries and keys");
  fit.require(config.moe.num_shared_experts == 0, "model.moe.num_shared_experts", "none");
  fit.require(config.moe.score == ScoreFunction::kSoftmax, "model.moe.score", "softmax");
  fit.require(config.moe.num_groups == 1, "model.moe.num_groups", "no groups of experts");
  fit.require(config.moe.routed_scale == 1.0, "model.moe.routed_scale", "no factor of the weights");
  fit.require(config.moe.bias_rate == 0.0, "model.moe.bias_rate", "no selection bias");
}

void require_mla(Fit& fit, const ModelConfig& config) {
  fit.require(config.attention == PartKind::kMla, "model.attention", "latent attention");
  fit.require(config.mla.norm_eps == kHfLatentNormEps, "model.mla.norm_eps", fmt::format("{}", kHfLatentNormEps));
}

void require_deepseek_v2(Fit& fit, const ModelConfig& config) {
  require_mla(fit, config);
  fit.require(config.moe.score == ScoreFunction::kSoftmax, "model.moe.score", "softmax");
  fit.require(!config.moe.normalise_weights, "model.moe.normalise_weights",
              "weights that are not divided by their sum");
  fit.require(config.moe.bias_rate == 0.0, "model.moe.bias_rate", "no selection bias");
  fit.require(config.dim % config.num_heads == 0, "model.dim", "a multiple of the number of heads");
}

void require_deepseek_v3(Fit& fit, const ModelConfig& config) {
  require_mla(fit, config);
  fit.require(config.moe.score == ScoreFunction::kSigmoid, "model.moe.score", "sigmoid");
  fit.require(config.moe.num_experts != 1, "model.moe.num_experts", "at least two experts in a group");
}

Json eos_json(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? Json(ids[0]) : Json(ids);
}

// null, or YaRN. All versions of transformers read it beside rope_theta.
Json rope_scaling_json(const YarnConfig& yarn, ModelType type) {
  if (yarn.factor == 1.0) return nullptr;
  Json json = {{type == ModelType::kQwen3Moe ? "rope_type" : "type", "yarn"},
               {"factor", yarn.factor},
               {"original_max_position_embeddings", yarn.original_max_positions},
               {"beta_fast", yarn.beta_fast},
               {"beta_slow", yarn.beta_slow}};
  if (yarn.mscale_all_dim != 0.0) {
    json["mscale"] = yarn.mscale;
    json["mscale_all_dim"] = yarn.mscale_all_dim;
  }
  return json;
}

void write_deepseek(Json& json, const HfModel& model) {
  const ModelConfig& config = model.config;
  const MlaConfig& mla = config.mla;
  const MoeConfig& moe = config.moe;
  json["num_key_value_heads"] = config.num_heads;
  json["q_lora_rank"] = mla.q_lora_rank == 0 ? Json(nullptr) : Json(mla.q_lora_rank);
  json["kv_lora_rank"] = mla.kv_lora_rank;
  json["qk_nope_head_dim"] = mla.qk_nope_head_dim;
  json["qk_rope_head_dim"] = mla.qk_rope_head_dim;
  json["v_head_dim"] = mla.v_head_dim;
  json["first_k_dense_replace"] = config.num_dense_layers;
  json["moe_layer_freq"] = 1;
  json["n_shared_experts"] = moe.num_shared_experts;
  json["n_group"] = moe.num_groups;
  json["topk_group"] = moe.num_groups == 1 ? 1 : moe.top_groups;
  json["routed_scaling_factor"] = moe.routed_scale;
  if (model.type == ModelType::kDeepseekV2) {
    json["scoring_func"] = "softmax";
    json["topk_method"] = moe.num_groups > 1 ? "group_limited_greedy" : "greedy";
  } else {
    json["scoring_func"] = "sigmoid";
    json["topk_method"] = "noaux_tc";
    json["rope_interleave"] = config.rope.layout == RopeLayout::kInterleaved;
    json[kNextnKey.name] = model.num_nextn_predict_layers;
  }
}

void write_qwen3_moe(Json& json, const ModelConfig& config) {
  std::vector<int64_t> dense_layers(static_cast<size_t>(config.num_dense_layers));
  std::iota(dense_layers.begin(), dense_layers.end(), 0);
  json["num_key_value_heads"] = config.gqa.num_kv_heads;
  json["head_dim"] = config.gqa.head_dim;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = dense_layers;
}

// The one JSON of a model: equal models give equal ones. Without dense layers their width means nothing, and a
// configuration's text does not have it; transformers wants some number.
Json canonical_json(const HfModel& model) {
  const ModelConfig& config = model.config;
  Json json = {{"architectures", {architecture_name(model.type)}},
               {"model_type", model_type_name(model.type)},
               {"vocab_size", config.vocab_size},
               {"hidden_size", config.dim},
               {"num_hidden_layers", config.num_layers},
               {"num_attention_heads", config.num_heads},
               {"intermediate_size", config.num_dense_layers > 0 ? config.dense_dim : ModelConfig().dense_dim},
               {"moe_intermediate_size", config.moe.expert_dim},
               {routed_experts_key(model.type).name, config.moe.num_experts},
               {"num_experts_per_tok", config.moe.top_k},
               {"norm_topk_prob", config.moe.normalise_weights},
               {"hidden_act", "silu"},
               {"attention_bias", false},
               {"rms_norm_eps", config.norm_eps},
               {"tie_word_embeddings", config.tied_head},
               {"max_position_embeddings", config.max_positions},
               {"rope_theta", config.rope.theta},
               {"rope_scaling", rope_scaling_json(config.yarn, model.type)},
               {"bos_token_id", model.bos_id ? Json(*model.bos_id) : Json(nullptr)},
               {"eos_token_id", eos_json(model.eos_ids)}};
  if (model.type == ModelType::kQwen3Moe) {
    write_qwen3_moe(json, config);
  } else {
    write_deepseek(json, model);
  }
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
  if (key == "rope_theta" || key == "rope_scaling") return {"rope_theta", "rope_scaling", "rope_parameters"};
  for (const KeyNames& names : {kDtypeKey, kNextnKey, routed_experts_key(type)}) {
    if (key == names.name) return {names.alias};
  }
  return {};
}

void replace(Json& json, std::string_view key, const Json& wanted, ModelType type) {
  const std::string name(key);
  // A rope key takes its rivals with it, so all of them are written anew.
  const bool is_rope = key == "rope_theta" || key == "rope_scaling";
  for (const std::string_view rival : rivals_of(key, type)) {
    if (rival != key) json.erase(std::string(rival));
  }
  if (is_rope) {
    json["rope_theta"] = wanted.at("rope_theta");
    json["rope_scaling"] = wanted.at("rope_scaling");
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
  fit.require(config.moe.num_experts > 0, "model.moe.num_experts", "experts");
  fit.require(config.activation == Activation::kSwiGlu, "model.activation", "swiglu");
  fit.require(config.window == 0, "model.window", "no windows");
  switch (type) {
    case ModelType::kDeepseekV2:
      require_deepseek_v2(fit, config);
      break;
    case ModelType::kDeepseekV3:
    case ModelType::kKimiK2:
      require_deepseek_v3(fit, config);
      break;
    case ModelType::kQwen3Moe:
      require_gqa(fit, config);
      break;
  }
  require_yarn(fit, config.yarn, type);
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
  const ModelConfig config = without_layers_key(given);
  if (config.attention == PartKind::kGqa) return ModelType::kQwen3Moe;
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
