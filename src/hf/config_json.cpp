#include "hf/config_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "config/schema.h"
#include "config/validate.h"
#include "hf/config_json_keys.h"
#include "hf/types/features.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

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

void read_quantization(Keys& file, HfModel& model) {
  const Json* quantization = file.find("quantization_config");
  if (quantization == nullptr) return;
  if (!quantization->is_object()) throw file.error("quantization_config", "must be an object");
  Keys keys(*quantization, file.lacking(), "quantization_config.");
  const std::string method = keys.text("quant_method", "");
  if (method == "mxfp4" && model.type == ModelType::kGptOss) {
    keys.ignore("modules_to_not_convert");  // all but experts: names and dtypes of tensors say it
    keys.finish();
    model.format = HfFormat::kMxFp4;
    return;
  }
  if (method != "fp8") {
    return keys.lacks("quant_method",
                      "nmoe reads fp8 weights, gpt_oss's in mxfp4, and no other quantised ones: take the "
                      "model's unquantised or fp8 release");
  }
  if (keys.text("fmt", "e4m3") != "float8_e4m3fn") keys.only("fmt", "e4m3");
  const Json block = {kHfFp8Block, kHfFp8Block};
  if (keys.find("weight_block_size") == nullptr) {
    throw keys.error("weight_block_size", "is missing: scales of other than blocks are not supported",
                     "take the model's unquantised release");
  }
  keys.only("weight_block_size", block);
  const std::string scales = keys.text("scale_fmt", "float");
  if (scales != "float" && scales != "ue8m0") {
    keys.lacks("scale_fmt", "nmoe knows \"float\" and \"ue8m0\": take the model's unquantised release");
  }
  // Which activations meet the weights, and which matrices are left alone: the weights' own types say.
  keys.ignore("activation_scheme");
  keys.ignore("modules_to_not_convert");
  keys.finish();
  model.format = HfFormat::kFp8;
  model.scales = scales == "ue8m0" ? HfScales::kPowersOfTwo : HfScales::kNumbers;
}

void read_ids(Keys& keys, HfModel& model) {
  const int64_t bos = keys.at_least(0, {"bos_token_id"}, -1);
  if (bos >= model.config.vocab_size) throw keys.error("bos_token_id", "must be below vocab_size");
  if (bos >= 0) model.bos_id = bos;
  const Json* eos = keys.find("eos_token_id");
  if (eos == nullptr) return;
  for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
    if (!id.is_number_integer() || id < 0 || id >= model.config.vocab_size) {
      throw keys.error("eos_token_id", "must be a token id below vocab_size, or a list of them");
    }
    model.eos_ids.push_back(id.get<int64_t>());
  }
}

// Error naming what a type that is not read has and nmoe has not.
ModelType read_type(Keys& keys, const Json& file) {
  const std::string name = keys.text("model_type", "");
  for (const ModelType type : kModelTypes) {
    if (name == model_type_name(type)) {
      keys.only("architectures", Json::array({architecture_name(type)}), "nmoe reads whole language models");
      return type;
    }
  }
  const std::string_view features = features_of_type(name);
  keys.lacks("model_type",
             fmt::format("nmoe reads {}{}{}", model_type_names(),
                         features.empty() ? "" : ", and this type needs what nmoe does not have: ", features));
  for (const auto& [key, value] : file.items()) {
    const std::string_view feature = feature_of_key(key);
    if (!feature.empty() && !value.is_null()) keys.lacks(key, fmt::format("nmoe has no {}", feature));
  }
  throw keys.lacking().error();
}

// What schema and rules say of any configuration, they say of this one.
void check_limits(const ModelConfig& model, const std::string& path) {
  constexpr const char* kOtherModel =
      "nmoe has no such models; correct config.json if it does not describe its weights";
  Config config;
  config.model = model;
  config.data.seq_len = 1;
  for (Field& field : describe(config)) {
    if (field.section().starts_with("model") && !field.set(field.get())) {
      throw runtime_error(
          fmt::format("'{}': {} would be {}, and must be {}", path, field.key, to_toml(field.get()), field.allowed),
          kOtherModel);
    }
  }
  if (const std::vector<Issue> issues = find_issues(config); !issues.empty()) {
    throw runtime_error(fmt::format("'{}' gives {}", path, issues.front().what), kOtherModel);
  }
}

// All of the file but its type and what find_issues says.
void read_model(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  config.vocab_size = keys.at_least(1, {"vocab_size"});
  config.dim = keys.at_least(1, {"hidden_size"});
  config.max_positions = keys.at_least(1, {"max_position_embeddings"});
  config.tied_head = keys.flag("tie_word_embeddings", model.type == ModelType::kErnie45Moe);
  if (!is_hybrid(model.type)) {  // which has these under names of its own, and no rotation
    config.num_layers = keys.at_least(1, {"num_hidden_layers"});
    config.num_heads = keys.at_least(1, {"num_attention_heads"});
    config.norm_eps = keys.positive("rms_norm_eps");
    keys.only("hidden_act", "silu");
  }
  keys.only("attention_dropout", 0.0);
  keys.only("pretraining_tp", 1, "weights split over devices are not supported");
  text_of(model.type).read(keys, model);
  if (!is_hybrid(model.type)) read_rope(keys, model.type, config);
  read_quantization(keys, model);
  read_ids(keys, model);
  if (const Json* dtype = keys.find(kDtypeKey)) {
    const std::array<Json, 3> known = {"bfloat16", "float16", "float32"};
    if (std::ranges::find(known, *dtype) == known.end()) {
      throw keys.error(keys.find(kDtypeKey.name) != nullptr ? kDtypeKey.name : kDtypeKey.alias,
                       "must be \"bfloat16\", \"float16\" or \"float32\"");
    }
    model.dtype = dtype->get<std::string>();
  }
  for (const std::string_view key : kHarmless) keys.ignore(key);
  keys.finish();
}

}  // namespace

HfModel from_config_json(std::string_view text, const std::string& path) {
  const Json json = try_parse_json<Json>(with_quoted_infinity(text));
  if (!json.is_object()) throw runtime_error(fmt::format("'{}' is not a JSON object", path), "fetch the file again");

  Lacking lacking(path);
  Keys keys(json, lacking, "");
  HfModel model;
  model.type = read_type(keys, json);
  try {
    read_model(keys, model);
  } catch (const Error& error) {
    if (lacking.empty()) throw;
    lacking.add(error.what());  // a key that only means something with what is lacking, say
  }
  if (!lacking.empty()) throw lacking.error();
  check_limits(model.config, path);
  return model;
}

}  // namespace nmoe
