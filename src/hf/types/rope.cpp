#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "base/text.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

// Types of DeepSeek's, whose own code scales the softmax of a stretched context by mscale_all_dim.
bool has_softmax_magnitude(const ModelConfig& config) { return config.attention == PartKind::kMla; }

// The share of a head that rotates where a file does not say it; nothing for types that rotate whole heads.
std::optional<double> rotated_share(ModelType type) {
  switch (type) {
    case ModelType::kGlm4Moe:
      return 0.5;
    case ModelType::kMinimaxM2:
      return 1.0;
    case ModelType::kQwen3Next:
      return 0.25;
    default:
      return std::nullopt;
  }
}

int64_t rotated(const ModelConfig& model) {
  return model.attention == PartKind::kMla ? model.mla.qk_rope_head_dim : model.gqa.rotated();
}

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
void read_magnitudes(Keys& keys, const ModelConfig& model, YarnConfig& yarn) {
  const Json* mscale = keys.find("mscale");
  const Json* all_dim = keys.find("mscale_all_dim");
  const auto number = [&keys](const Json* value, std::string_view key, double otherwise) {
    if (value == nullptr) return otherwise;
    if (!value->is_number() || !(value->get<double>() >= 0.0)) throw keys.error(key, "must be a number of at least 0");
    return value->get<double>();
  };
  yarn.mscale = number(mscale, "mscale", 1.0);
  yarn.mscale_all_dim = number(all_dim, "mscale_all_dim", 0.0);
  if (yarn.mscale_all_dim == 0.0) {
    if (yarn.mscale == 1.0) return;
    throw keys.error("mscale", "without mscale_all_dim, transformers ignores it and DeepSeek's code does not",
                     "give both, or neither");
  }
  if (!has_softmax_magnitude(model)) {
    throw keys.error("mscale_all_dim", "the type's attention does not scale its softmax by it, nmoe's would",
                     "remove mscale and mscale_all_dim if the model was not trained with them");
  }
  if (mscale == nullptr || yarn.mscale == 0.0) {
    throw keys.error("mscale_all_dim", "without mscale, transformers and DeepSeek's code scale cos and sin differently",
                     "give both, or neither");
  }
}

// What scales cos and sin, where a file says it: transformers derives it as nmoe does.
void check_attention_factor(Keys& keys, double factor, const YarnConfig& yarn) {
  const auto magnitude = [factor](double mscale) { return 0.1 * mscale * std::log(factor) + 1.0; };
  const double derived =
      yarn.mscale_all_dim == 0.0 ? magnitude(1.0) : magnitude(yarn.mscale) / magnitude(yarn.mscale_all_dim);
  if (std::abs(keys.positive("attention_factor", derived) - derived) <= 1e-6 * derived) return;
  throw keys.error("attention_factor",
                   fmt::format("nmoe derives {} from factor, mscale and mscale_all_dim, and takes no other", derived),
                   "remove it if the model was not trained with it");
}

double read_factor(Keys& keys) {
  const double factor = keys.positive("factor");
  if (factor < 1.0) throw keys.error("factor", "must be at least 1");
  return factor;
}

void read_yarn(Keys& keys, ModelConfig& model) {
  const double factor = read_factor(keys);
  YarnConfig yarn;
  yarn.original_max_positions = keys.at_least(1, {"original_max_position_embeddings"});
  yarn.beta_fast = keys.positive("beta_fast", yarn.beta_fast);
  yarn.beta_slow = keys.positive("beta_slow", yarn.beta_slow);
  if (has_softmax_magnitude(model)) {
    keys.only("truncate", true, "DeepSeek's code rounds the ends of YaRN's ramp whatever it says");
  } else {
    yarn.truncate = keys.flag("truncate", true);
  }
  read_magnitudes(keys, model, yarn);
  check_attention_factor(keys, factor, yarn);
  if (factor == 1.0) return;  // plain
  yarn.factor = factor;
  if (ramp_outside_head(yarn, model.rope.theta, rotated(model))) {
    keys.lacks("original_max_position_embeddings", "YaRN's ramp lies outside the head");
    return;
  }
  model.yarn = yarn;
}

void read_linear(Keys& keys, ModelConfig& model) {
  const double factor = read_factor(keys);
  if (factor == 1.0) return;
  model.rope.scaling = RopeScaling::kLinear;
  model.rope.factor = factor;
}

void read_llama3(Keys& keys, ModelConfig& model) {
  RopeConfig rope = model.rope;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = read_factor(keys);
  rope.low_freq_factor = keys.positive("low_freq_factor");
  rope.high_freq_factor = keys.positive("high_freq_factor");
  rope.original_max_positions = keys.at_least(1, {"original_max_position_embeddings"});
  if (rope.low_freq_factor >= rope.high_freq_factor) {
    throw keys.error("high_freq_factor", "must be more than low_freq_factor");
  }
  if (rope.factor != 1.0) model.rope = rope;
}

// rope_type, in whichever of its names, and what it needs.
void read_scaling(Keys& keys, std::string_view key, ModelConfig& model) {
  const Json* type = keys.find(KeyNames{"rope_type", "type"});
  if (type == nullptr || *type == "default") return;
  const bool is_deepseek = model.attention == PartKind::kMla;
  if (*type == "yarn") {
    read_yarn(keys, model);
  } else if (*type == "linear" && !is_deepseek) {
    read_linear(keys, model);
  } else if (*type == "llama3" && !is_deepseek) {
    read_llama3(keys, model);
  } else {
    keys.lacks(key, is_deepseek
                        ? "nmoe has \"default\" and \"yarn\" for these models, no other change of the frequencies"
                        : "nmoe has \"default\", \"linear\", \"llama3\" and \"yarn\", no other change of the "
                          "frequencies");
  }
}

// Whether the file says that transformers 5 or a later one wrote it.
bool is_of_transformers_5(Keys& file) {
  const std::string version = file.text("transformers_version", "");
  const auto major = try_parse_count(std::string_view(version).substr(0, version.find('.')));
  return major && *major >= 5;
}

// How many values of a head rotate. transformers 5 keeps a share of them within rope_parameters; older files have it
// beside, and MiniMax's a number.
// NOTE: where there are rope_parameters, transformers goes by those, and ignores MiniMax's rotary_dim. What says
// otherwise beside them is left over in a file that transformers wrote, and refused in any other.
void read_rotated(Keys& file, Keys& keys, bool in_parameters, ModelType type, ModelConfig& model) {
  constexpr std::string_view kShare = "partial_rotary_factor";
  const std::optional<double> absent = rotated_share(type);
  if (!absent) {
    for (Keys* each : {&file, &keys}) each->only(kShare, 1.0, "nmoe rotates the whole of a head's rotated part");
    return;
  }
  const int64_t head_dim = model.gqa.head_dim;
  const double beside = file.positive(kShare, *absent), share = keys.positive(kShare, beside);
  if (file.has(kShare) && beside != share && !is_of_transformers_5(file)) {
    throw file.error(kShare, fmt::format("rope_parameters.{} = {} says otherwise", kShare, share),
                     "keep one of the two keys");
  }
  auto rotated = static_cast<int64_t>(share * static_cast<double>(head_dim));
  if (type == ModelType::kMinimaxM2) {
    const int64_t said = file.at_least(2, {"rotary_dim"}, rotated);
    const bool has_share = file.has(kShare) || keys.has(kShare);
    if (!in_parameters && has_share && said != rotated) {
      throw file.error("rotary_dim", fmt::format("{} = {} says otherwise", kShare, share), "keep one of the two keys");
    }
    if (in_parameters && said != rotated && !is_of_transformers_5(file)) {
      throw file.error(
          "rotary_dim",
          fmt::format("rope_parameters, by which transformers goes, have {} of a head's values rotate", rotated),
          fmt::format("leave it out, or add \"{}\" to rope_parameters", kShare));
    }
    if (!in_parameters) rotated = said;
  }
  if (rotated % 2 != 0 || rotated < 2 || rotated > head_dim) {
    throw file.error(kShare, fmt::format("{} of a head's {} values cannot rotate", rotated, head_dim));
  }
  if (rotated < head_dim) model.gqa.rotary_dim = rotated;
}

// A share of which transformers makes `rotated` again: it cuts what the product is down to a whole number.
double share_of(int64_t rotated, int64_t head_dim) {
  double share = static_cast<double>(rotated) / static_cast<double>(head_dim);
  while (static_cast<int64_t>(share * static_cast<double>(head_dim)) < rotated) share = std::nextafter(share, 1.0);
  return share;
}

Json scaling_json(const ModelConfig& config) {
  const YarnConfig& yarn = config.yarn;
  const RopeConfig& rope = config.rope;
  if (rope.scaling == RopeScaling::kLinear) return {{"rope_type", "linear"}, {"factor", rope.factor}};
  if (rope.scaling == RopeScaling::kLlama3) {
    return {{"rope_type", "llama3"},
            {"factor", rope.factor},
            {"low_freq_factor", rope.low_freq_factor},
            {"high_freq_factor", rope.high_freq_factor},
            {"original_max_position_embeddings", rope.original_max_positions}};
  }
  if (yarn.factor == 1.0) return nullptr;
  Json json = {{has_softmax_magnitude(config) ? "type" : "rope_type", "yarn"},
               {"factor", yarn.factor},
               {"original_max_position_embeddings", yarn.original_max_positions},
               {"beta_fast", yarn.beta_fast},
               {"beta_slow", yarn.beta_slow}};
  if (!yarn.truncate) json["truncate"] = false;
  if (yarn.mscale_all_dim != 0.0) {
    json["mscale"] = yarn.mscale;
    json["mscale_all_dim"] = yarn.mscale_all_dim;
  }
  return json;
}

}  // namespace

void read_rope(Keys& file, ModelType type, ModelConfig& model) {
  const Json* old_style = file.find("rope_scaling");
  const Json* new_style = file.find("rope_parameters");
  if (old_style != nullptr && new_style != nullptr) {
    throw file.error("rope_scaling", "rope_parameters says it too", "keep one of the two keys");
  }
  const std::string name = new_style != nullptr ? "rope_parameters" : "rope_scaling";
  const Json scaling = new_style != nullptr ? *new_style : old_style != nullptr ? *old_style : Json::object();
  if (!scaling.is_object()) throw file.error(name, "must be an object");

  Keys keys(scaling, file.lacking(), name + ".");
  const bool theta_inside = keys.has("rope_theta");
  if (theta_inside) {
    model.rope.theta = keys.positive("rope_theta");
  } else if (type == ModelType::kLlama) {  // Llama 2's files do not say it
    model.rope.theta = file.positive("rope_theta", 10000.0);
  } else {
    model.rope.theta = file.positive("rope_theta");
  }
  if (theta_inside && file.positive("rope_theta", model.rope.theta) != model.rope.theta) {
    throw file.error("rope_theta", fmt::format("{}.rope_theta = {} says otherwise", name, model.rope.theta),
                     "keep one of the two keys");
  }
  read_rotated(file, keys, new_style != nullptr, type, model);
  read_scaling(keys, scaling.contains("rope_type") ? "rope_type" : "type", model);
  keys.finish();
}

void write_rope(Json& json, ModelType type, const ModelConfig& config) {
  json["rope_theta"] = config.rope.theta;
  json["rope_scaling"] = scaling_json(config);
  if (!rotated_share(type)) return;
  json["partial_rotary_factor"] = share_of(config.gqa.rotated(), config.gqa.head_dim);
  if (type == ModelType::kMinimaxM2) json["rotary_dim"] = config.gqa.rotated();
}

void require_rope(Fit& fit, const ModelConfig& config) {
  const YarnConfig& yarn = config.yarn;
  if (has_softmax_magnitude(config)) {
    fit.require(config.rope.scaling == RopeScaling::kNone, "model.rope.scaling", "YaRN or none");
  }
  if (yarn.factor == 1.0) return;
  if (!has_softmax_magnitude(config)) {
    fit.require(yarn.mscale == 1.0, "model.yarn.mscale", "1 only");
    fit.require(yarn.mscale_all_dim == 0.0, "model.yarn.mscale_all_dim", "0 only");
  } else {
    fit.require(yarn.truncate, "model.yarn.truncate", "rounded ends of the ramp");
    fit.require(yarn.mscale_all_dim == 0.0 ? yarn.mscale == 1.0 : yarn.mscale > 0.0, "model.yarn.mscale",
                "1 without mscale_all_dim, and more than 0 with it");
  }
}

bool is_rope_key(std::string_view key) { return std::ranges::find(kRopeKeys, key) != std::end(kRopeKeys); }

}  // namespace nmoe
