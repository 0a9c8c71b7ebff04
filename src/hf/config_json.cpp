#include "hf/config_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "config/schema.h"
#include "config/validate.h"
#include "hf/config_json_keys.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;

// Keys without influence on weights or results: notes on training, on files, on serving.
constexpr std::array<std::string_view, 13> kHarmless = {"_attn_implementation_autoset",
                                                        "_name_or_path",
                                                        "auto_map",
                                                        "aux_loss_alpha",
                                                        "initializer_range",
                                                        "output_attentions",
                                                        "output_hidden_states",
                                                        "pad_token_id",
                                                        "return_dict",
                                                        "router_aux_loss_coef",
                                                        "seq_aux",
                                                        "transformers_version",
                                                        "use_cache"};

// The keys of one object of the file. It remembers which were asked for; finish() refuses the rest. A null counts as
// absent.
class Keys {
 public:
  // `prefix` is the object's own key with a dot, "" for the whole file.
  Keys(const Json& object, std::string path, std::string prefix)
      : object_(object), path_(std::move(path)), prefix_(std::move(prefix)) {}

  Error error(std::string_view key, const std::string& what, const std::string& remedy) const {
    const auto entry = object_.find(key);
    const std::string value = entry == object_.end() ? "" : " = " + entry->dump();
    return runtime_error(fmt::format("'{}': {}{}{}: {}", path_, prefix_, key, value, what), remedy);
  }

  const Json* find(std::string_view key) {
    asked_.emplace(key);
    const auto entry = object_.find(key);
    return entry == object_.end() || entry->is_null() ? nullptr : &*entry;
  }
  // Several names of the same value; those that are there must agree.
  const Json* find(const KeyNames& names) {
    const Json* found = find(names.name);
    if (names.alias.empty()) return found;
    const Json* other = find(names.alias);
    if (found != nullptr && other != nullptr && *found != *other) {
      throw error(names.name, fmt::format("{}{} = {} says otherwise", prefix_, names.alias, other->dump()),
                  "keep one of the two keys");
    }
    return found != nullptr ? found : other;
  }

  int64_t at_least(int64_t min, const KeyNames& names) { return checked_integer(need(names), min, names.name); }
  int64_t at_least(int64_t min, const KeyNames& names, int64_t otherwise) {
    const Json* value = find(names);
    return value == nullptr ? otherwise : checked_integer(*value, min, names.name);
  }
  double positive(std::string_view key) { return checked_number(need({key}), key); }
  double positive(std::string_view key, double otherwise) {
    const Json* value = find(key);
    return value == nullptr ? otherwise : checked_number(*value, key);
  }
  bool flag(std::string_view key) { return checked_flag(need({key}), key); }
  bool flag(std::string_view key, bool otherwise) {
    const Json* value = find(key);
    return value == nullptr ? otherwise : checked_flag(*value, key);
  }
  std::string text(std::string_view key, std::string otherwise) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) throw error(key, "must be a string", kBroken);
    return value->get<std::string>();
  }

  // Refuses every value but this one; absent means it.
  void only(std::string_view key, const Json& wanted, const std::string& why = "nmoe has no counterpart") {
    const Json* value = find(key);
    if (value != nullptr && *value != wanted) {
      throw error(key, fmt::format("{}; only {} is supported", why, wanted.dump()), kOtherModel);
    }
  }
  void ignore(std::string_view key) { asked_.emplace(key); }

  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      if (!asked_.contains(key)) throw error(key, "nmoe does not know this key", kOtherModel);
    }
  }

  static constexpr const char* kOtherModel =
      "nmoe reads DeepSeek-V2, DeepSeek-V3, Kimi-K2 and Qwen3-MoE models; remove the key if it changes no result";
  static constexpr const char* kBroken = "fetch the file again: transformers would refuse it too";

 private:
  const Json& need(const KeyNames& names) {
    const Json* value = find(names);
    if (value == nullptr) throw error(names.name, "is missing", "write it into the file, with the model's value");
    return *value;
  }
  int64_t checked_integer(const Json& value, int64_t min, std::string_view key) const {
    if (!value.is_number_integer() || value.get<int64_t>() < min) {
      throw error(key, fmt::format("must be an integer of at least {}", min), kBroken);
    }
    return value.get<int64_t>();
  }
  double checked_number(const Json& value, std::string_view key) const {
    if (!value.is_number() || !(value.get<double>() > 0.0)) throw error(key, "must be a number above 0", kBroken);
    return value.get<double>();
  }
  bool checked_flag(const Json& value, std::string_view key) const {
    if (!value.is_boolean()) throw error(key, "must be true or false", kBroken);
    return value.get<bool>();
  }

  const Json& object_;
  std::string path_;
  std::string prefix_;
  std::set<std::string, std::less<>> asked_;
};

// The ramp between kept and slowed frequencies is cut to the head at both ends. transformers turns it round when it
// lies outside altogether.
bool ramp_outside_head(const YarnConfig& yarn, double theta, int64_t rope_dim) {
  const double dim = static_cast<double>(rope_dim);
  const double turns = static_cast<double>(yarn.original_max_positions) / (2.0 * std::numbers::pi);
  return turns < yarn.beta_slow || turns > yarn.beta_fast * std::pow(theta, 2.0 * (dim - 1.0) / dim);
}

// mscale and mscale_all_dim. transformers scales cos and sin by m(mscale) / m(mscale_all_dim) when both are there and
// not 0, else by m(1); DeepSeek's code by the quotient always, with 1 and 0 for what is absent. They agree when both
// are given, or when none is and mscale is 1.
void read_magnitudes(Keys& keys, ModelType type, YarnConfig& yarn) {
  const Json* mscale = keys.find("mscale");
  const Json* all_dim = keys.find("mscale_all_dim");
  const auto number = [&keys](const Json* value, std::string_view key, double otherwise) {
    if (value == nullptr) return otherwise;
    if (!value->is_number() || !(value->get<double>() >= 0.0)) {
      throw keys.error(key, "must be a number of at least 0", Keys::kBroken);
    }
    return value->get<double>();
  };
  yarn.mscale = number(mscale, "mscale", 1.0);
  yarn.mscale_all_dim = number(all_dim, "mscale_all_dim", 0.0);
  if (yarn.mscale_all_dim == 0.0) {
    if (yarn.mscale == 1.0) return;
    throw keys.error("mscale", "without mscale_all_dim, transformers ignores it and DeepSeek's code does not",
                     "give both, or neither");
  }
  if (type == ModelType::kQwen3Moe) {
    throw keys.error("mscale_all_dim", "Qwen3's attention does not scale its softmax by it, nmoe's would",
                     "remove mscale and mscale_all_dim if the model was not trained with them");
  }
  if (mscale == nullptr || yarn.mscale == 0.0) {
    throw keys.error("mscale_all_dim", "without mscale, transformers and DeepSeek's code scale cos and sin differently",
                     "give both, or neither");
  }
}

void read_yarn(Keys& keys, ModelType type, ModelConfig& model) {
  constexpr const char* kFormula = "nmoe derives it from factor, mscale and mscale_all_dim";
  const double factor = keys.positive("factor");
  if (factor < 1.0) throw keys.error("factor", "must be at least 1", Keys::kBroken);
  YarnConfig yarn;
  yarn.original_max_positions = keys.at_least(1, {"original_max_position_embeddings"});
  yarn.beta_fast = keys.positive("beta_fast", yarn.beta_fast);
  yarn.beta_slow = keys.positive("beta_slow", yarn.beta_slow);
  keys.only("truncate", true, "nmoe rounds the ends of YaRN's ramp");
  if (keys.find("attention_factor") != nullptr) {
    throw keys.error("attention_factor", kFormula, "remove it if it is what transformers derives as well");
  }
  read_magnitudes(keys, type, yarn);
  if (factor == 1.0) return;  // plain
  yarn.factor = factor;
  const int64_t rope_dim = model.attention == PartKind::kMla ? model.mla.qk_rope_head_dim : model.gqa.head_dim;
  if (ramp_outside_head(yarn, model.rope.theta, rope_dim)) {
    throw keys.error("original_max_position_embeddings", "YaRN's ramp lies outside the head", Keys::kOtherModel);
  }
  model.yarn = yarn;
}

// Both spellings: rope_theta beside rope_scaling (null, or what to do beyond the trained length), and rope_parameters
// with all of it.
void read_rope(Keys& file, const std::string& path, ModelType type, ModelConfig& model) {
  const Json* old_style = file.find("rope_scaling");
  const Json* new_style = file.find("rope_parameters");
  if (old_style != nullptr && new_style != nullptr) {
    throw file.error("rope_scaling", "rope_parameters says it too", "keep one of the two keys");
  }
  const std::string name = new_style != nullptr ? "rope_parameters" : "rope_scaling";
  const Json scaling = new_style != nullptr ? *new_style : old_style != nullptr ? *old_style : Json::object();
  if (!scaling.is_object()) throw file.error(name, "must be an object", Keys::kBroken);

  Keys keys(scaling, path, name + ".");
  const bool theta_inside = keys.find("rope_theta") != nullptr;
  model.rope.theta = theta_inside ? keys.positive("rope_theta") : file.positive("rope_theta");
  if (theta_inside && file.positive("rope_theta", model.rope.theta) != model.rope.theta) {
    throw file.error("rope_theta", fmt::format("{}.rope_theta = {} says otherwise", name, model.rope.theta),
                     "keep one of the two keys");
  }
  keys.only("partial_rotary_factor", 1.0, "nmoe rotates the whole of a head's rotated part");
  const Json* rope_type = keys.find(KeyNames{"rope_type", "type"});
  if (rope_type != nullptr && *rope_type == "yarn") {
    read_yarn(keys, type, model);
  } else if (rope_type != nullptr && *rope_type != "default") {
    throw keys.error(scaling.contains("rope_type") ? "rope_type" : "type",
                     "nmoe has \"default\" and \"yarn\", no other change of the frequencies", Keys::kOtherModel);
  }
  keys.finish();
}

void read_quantization(Keys& file, const std::string& path, HfModel& model) {
  const Json* quantization = file.find("quantization_config");
  if (quantization == nullptr) return;
  if (!quantization->is_object()) throw file.error("quantization_config", "must be an object", Keys::kBroken);
  Keys keys(*quantization, path, "quantization_config.");
  const std::string method = keys.text("quant_method", "");
  if (method != "fp8") {
    throw keys.error("quant_method", "nmoe reads fp8 weights and no other quantised ones",
                     "take the model's unquantised or fp8 release");
  }
  keys.only("fmt", "e4m3");
  const Json block = {kHfFp8Block, kHfFp8Block};
  if (keys.find("weight_block_size") == nullptr) {
    throw keys.error("weight_block_size", "is missing: scales of other than blocks are not supported",
                     "take the model's unquantised release");
  }
  keys.only("weight_block_size", block);
  // Which activations meet the weights, and which matrices are left alone: the weights' own types say.
  keys.ignore("activation_scheme");
  keys.ignore("modules_to_not_convert");
  keys.ignore("scale_fmt");
  keys.finish();
  model.fp8 = true;
}

void read_ids(Keys& keys, HfModel& model) {
  const int64_t bos = keys.at_least(0, {"bos_token_id"}, -1);
  if (bos >= model.config.vocab_size) throw keys.error("bos_token_id", "must be below vocab_size", Keys::kBroken);
  if (bos >= 0) model.bos_id = bos;
  const Json* eos = keys.find("eos_token_id");
  if (eos == nullptr) return;
  for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
    if (!id.is_number_integer() || id < 0 || id >= model.config.vocab_size) {
      throw keys.error("eos_token_id", "must be a token id below vocab_size, or a list of them", Keys::kBroken);
    }
    model.eos_ids.push_back(id.get<int64_t>());
  }
}

void read_mla(Keys& keys, ModelConfig& model) {
  model.attention = PartKind::kMla;
  keys.only("num_key_value_heads", model.num_heads, "every head of latent attention has its own keys and values");
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

void read_groups(Keys& keys, MoeConfig& moe) {
  moe.num_groups = keys.at_least(1, {"n_group"});
  moe.top_groups = keys.at_least(1, {"topk_group"});
  if (moe.top_groups > moe.num_groups) {
    throw keys.error("topk_group", fmt::format("there are only {} groups", moe.num_groups), Keys::kBroken);
  }
}

// What DeepSeek-V2 and V3 have in common.
void read_deepseek(Keys& keys, ModelType type, ModelConfig& model) {
  read_mla(keys, model);
  model.num_dense_layers = keys.at_least(0, {"first_k_dense_replace"});
  keys.only("moe_layer_freq", 1, "in nmoe every layer behind the dense ones has experts");
  keys.only("ep_size", 1, "weights split over devices are not supported");
  MoeConfig& moe = model.moe;
  moe.num_experts = keys.at_least(1, routed_experts_key(type));
  moe.num_shared_experts = keys.at_least(0, {"n_shared_experts"}, 0);
  moe.routed_scale = keys.positive("routed_scaling_factor");
}

void read_deepseek_v3(Keys& keys, HfModel& model) {
  MoeConfig& moe = model.config.moe;
  read_deepseek(keys, model.type, model.config);
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
  read_deepseek(keys, model.type, model.config);
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
    throw keys.error("topk_method", "must be \"greedy\" or \"group_limited_greedy\"", Keys::kOtherModel);
  }
}

void read_qwen3_moe(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  config.attention = PartKind::kGqa;
  config.rope.layout = RopeLayout::kHalfSplit;
  config.gqa.qk_norm = true;
  config.gqa.num_kv_heads = keys.at_least(1, {"num_key_value_heads"});
  if (keys.find("head_dim") == nullptr && config.dim % config.num_heads != 0) {
    throw keys.error("head_dim", "is missing, and hidden_size is not a multiple of num_attention_heads", Keys::kBroken);
  }
  config.gqa.head_dim = keys.at_least(1, {"head_dim"}, config.dim / config.num_heads);

  MoeConfig& moe = config.moe;
  moe.num_experts = keys.at_least(1, routed_experts_key(model.type));
  moe.num_shared_experts = 0;
  moe.score = ScoreFunction::kSoftmax;
  moe.normalise_weights = keys.flag("norm_topk_prob");
  moe.bias_rate = 0.0;

  // Written by some releases, with what transformers computes without them.
  keys.only("use_qk_norm", true, "Qwen3's queries and keys have norms");
  keys.only("qkv_bias", false);
  keys.only("mlp_bias", false);
  keys.only("shared_expert_intermediate_size", 0, "Qwen3-MoE has no shared experts");
  keys.only("num_shared_experts", 0, "Qwen3-MoE has no shared experts");
  keys.only("n_shared_experts", 0, "Qwen3-MoE has no shared experts");
  keys.only("decoder_sparse_step", 1, "in nmoe every layer behind the dense ones has experts");
  keys.only("output_router_logits", false, "it adds the balance loss to the model's loss");
  keys.only("use_sliding_window", false, "transformers' windows are not nmoe's");
  keys.ignore("sliding_window");  // both without effect
  keys.ignore("max_window_layers");
  if (const Json* layers = keys.find("layer_types")) {
    const bool all_full =
        layers->is_array() && std::ranges::all_of(*layers, [](const Json& layer) { return layer == "full_attention"; });
    if (!all_full) throw keys.error("layer_types", "only \"full_attention\" is supported", Keys::kOtherModel);
  }
  config.num_dense_layers = 0;
  if (const Json* layers = keys.find("mlp_only_layers")) {
    std::set<Json> dense;
    if (layers->is_array()) dense.insert(layers->begin(), layers->end());
    for (const Json& layer : dense) {
      if (layer == config.num_dense_layers) ++config.num_dense_layers;
    }
    if (!layers->is_array() || static_cast<size_t>(config.num_dense_layers) != dense.size()) {
      throw keys.error("mlp_only_layers", "in nmoe dense layers are the first n: 0, 1, ... n - 1", Keys::kOtherModel);
    }
  }
}

ModelType read_type(Keys& keys) {
  const std::string name = keys.text("model_type", "");
  for (const ModelType type : kModelTypes) {
    if (name == model_type_name(type)) {
      keys.only("architectures", Json::array({architecture_name(type)}), "nmoe reads whole language models");
      return type;
    }
  }
  throw keys.error("model_type", "nmoe reads deepseek_v2, deepseek_v3, kimi_k2 and qwen3_moe", "choose another model");
}

// What schema and rules say of any configuration, they say of this one.
void check_limits(const ModelConfig& model, const std::string& path) {
  Config config;
  config.model = model;
  config.data.seq_len = 1;
  for (Field& field : describe(config)) {
    if (field.section().starts_with("model") && !field.set(field.get())) {
      throw runtime_error(
          fmt::format("'{}': {} would be {}, and must be {}", path, field.key, to_toml(field.get()), field.allowed),
          Keys::kOtherModel);
    }
  }
  if (const std::vector<Issue> issues = find_issues(config); !issues.empty()) {
    throw runtime_error(fmt::format("'{}' gives {}", path, issues.front().what), Keys::kOtherModel);
  }
}

}  // namespace

HfModel from_config_json(std::string_view text, const std::string& path) {
  const Json json = try_parse_json<Json>(text);
  if (!json.is_object()) throw runtime_error(fmt::format("'{}' is not a JSON object", path), "fetch the file again");

  Keys keys(json, path, "");
  HfModel model;
  model.type = read_type(keys);
  ModelConfig& config = model.config;
  config.vocab_size = keys.at_least(1, {"vocab_size"});
  config.dim = keys.at_least(1, {"hidden_size"});
  config.num_layers = keys.at_least(1, {"num_hidden_layers"});
  config.num_heads = keys.at_least(1, {"num_attention_heads"});
  config.dense_dim = keys.at_least(1, {"intermediate_size"});
  config.max_positions = keys.at_least(1, {"max_position_embeddings"});
  config.norm_eps = keys.positive("rms_norm_eps");
  config.tied_head = keys.flag("tie_word_embeddings", false);
  config.moe.expert_dim = keys.at_least(1, {"moe_intermediate_size"});
  config.moe.top_k = keys.at_least(1, {"num_experts_per_tok"});
  keys.only("hidden_act", "silu");
  keys.only("attention_bias", false);
  keys.only("attention_dropout", 0.0);
  keys.only("pretraining_tp", 1, "weights split over devices are not supported");

  switch (model.type) {
    case ModelType::kDeepseekV2:
      read_deepseek_v2(keys, model);
      break;
    case ModelType::kDeepseekV3:
    case ModelType::kKimiK2:
      read_deepseek_v3(keys, model);
      break;
    case ModelType::kQwen3Moe:
      read_qwen3_moe(keys, model);
      break;
  }
  read_rope(keys, path, model.type, config);
  read_quantization(keys, path, model);
  read_ids(keys, model);
  if (const Json* dtype = keys.find(kDtypeKey)) {
    const std::array<Json, 3> known = {"bfloat16", "float16", "float32"};
    if (std::ranges::find(known, *dtype) == known.end()) {
      throw keys.error(json.contains(kDtypeKey.name) ? kDtypeKey.name : kDtypeKey.alias,
                       "must be \"bfloat16\", \"float16\" or \"float32\"", Keys::kBroken);
    }
    model.dtype = dtype->get<std::string>();
  }
  for (const std::string_view key : kHarmless) keys.ignore(key);
  keys.finish();
  check_limits(config, path);
  return model;
}

}  // namespace nmoe
