#include <algorithm>

#include "hf/types/types.h"

namespace nmoe {

using Json = Keys::Json;

void read_gqa(Keys& keys, ModelConfig& config, const GqaTraits& traits, bool kv_optional) {
  GqaConfig& gqa = config.gqa;
  config.attention = PartKind::kGqa;
  gqa.num_kv_heads = kv_optional ? keys.at_least(1, {"num_key_value_heads"}, config.num_heads)
                                 : keys.at_least(1, {"num_key_value_heads"});
  if (!keys.has("head_dim") && traits.head_dim == 0 && config.dim % config.num_heads != 0) {
    throw keys.error("head_dim", "is missing, and hidden_size is not a multiple of num_attention_heads");
  }
  gqa.head_dim = keys.at_least(1, {"head_dim"}, traits.head_dim > 0 ? traits.head_dim : config.dim / config.num_heads);
  gqa.qk_norm = traits.norms == GqaTraits::Norms::kPerHead || traits.norms == GqaTraits::Norms::kAllHeads;
  if (traits.norms == GqaTraits::Norms::kAllHeads) gqa.qk_norm_over = QkNormOver::kAllHeads;
}

void write_gqa(Json& json, const ModelConfig& config) {
  json["num_key_value_heads"] = config.gqa.num_kv_heads;
  json["head_dim"] = config.gqa.head_dim;
}

void require_gqa(Fit& fit, const ModelConfig& config, const GqaTraits& traits) {
  const GqaConfig& gqa = config.gqa;
  using Norms = GqaTraits::Norms;
  fit.require(config.attention == PartKind::kGqa, "model.attention", "grouped-query attention");
  if (traits.norms == Norms::kNone) fit.require(!gqa.qk_norm, "model.gqa.qk_norm", "no norms of queries and keys");
  if (traits.norms == Norms::kPerHead || traits.norms == Norms::kAllHeads) {
    fit.require(gqa.qk_norm, "model.gqa.qk_norm", "norms of queries and keys");
  }
  if (gqa.qk_norm && traits.norms != Norms::kNone) {
    const bool over_all = traits.norms == Norms::kAllHeads;
    fit.require((gqa.qk_norm_over == QkNormOver::kAllHeads) == over_all, "model.gqa.qk_norm_over",
                over_all ? "norms over all heads" : "a norm of each head");
  }
  fit.require(gqa.bias == AttentionBias::kNone || gqa.bias == traits.bias, "model.gqa.bias",
              traits.bias == AttentionBias::kNone  ? "no biases"
              : traits.bias == AttentionBias::kQkv ? "biases of queries, keys and values, or none"
                                                   : "biases of all four, or none");
  fit.require(traits.rotates_part || gqa.rotated() == gqa.head_dim, "model.gqa.rotary_dim", "whole heads that rotate");
}

void set_layers(ModelConfig& config, const LayerKinds& kinds) {
  const auto sparse = std::ranges::find(kinds.dense, 0);
  config.num_dense_layers = sparse - kinds.dense.begin();
  const bool are_first = std::find(sparse, kinds.dense.end(), 1) == kinds.dense.end();
  if (are_first && std::ranges::all_of(kinds.windows, [](int64_t window) { return window == 0; })) return;
  std::vector<LayerSpec> layers;
  for (size_t i = 0; i < kinds.dense.size(); ++i) {
    layers.push_back({.parts = {{.kind = config.attention, .window = kinds.windows[i]},
                                {.kind = kinds.dense[i] != 0 ? PartKind::kDense : PartKind::kMoe}}});
  }
  config.layers = write_layer_pattern(layers);
}

LayerKinds layer_kinds(const ModelConfig& config) {
  const std::vector<LayerSpec> layers = layer_specs(config);
  LayerKinds kinds(config);
  NMOE_CHECK(layers.size() == kinds.dense.size(), "{} layers of {}", layers.size(), kinds.dense.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    kinds.dense[i] = layers[i].parts.back().kind == PartKind::kDense ? 1 : 0;
    kinds.windows[i] = layers[i].parts.front().window;
  }
  return kinds;
}

namespace {

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";

// Whether each layer has a window, by what the file says of them.
std::vector<bool> read_windowed(Keys& keys, const WindowKeys& has, int64_t num_layers, bool is_on) {
  std::vector<bool> windowed(static_cast<size_t>(num_layers));
  // Where a file says nothing, what transformers' classes of configurations do: Qwen's, and dots1's.
  const int64_t limit = keys.at_least(0, {"max_window_layers"}, has.has_switch ? 28 : 62);
  const Json* types = keys.find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != windowed.size())) {
    throw keys.error("layer_types", fmt::format("must be a list of {} types", num_layers));
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    if (types == nullptr) {
      windowed[at] = is_on && (has.alternates ? i % 2 == 0 : has.is_qwen2 ? i % 2 == 0 && i < limit : i >= limit);
    } else if (types->at(at) != kFull && types->at(at) != kSliding) {
      keys.lacks("layer_types", fmt::format("nmoe has no {}", types->at(at).dump()));
      break;
    } else {
      windowed[at] = types->at(at) == kSliding;
    }
  }
  return windowed;
}

}  // namespace

void read_windows(Keys& keys, const WindowKeys& has, LayerKinds& kinds) {
  const bool is_on = !has.has_switch || keys.flag("use_sliding_window", false);
  for (const char* key : {"use_sliding_window", "sliding_window"}) keys.ignore(key);
  const int64_t size = keys.says_null("sliding_window") ? 0 : keys.at_least(0, {"sliding_window"}, has.size);
  const std::vector<bool> windowed =
      read_windowed(keys, has, std::ssize(kinds.windows), is_on && !keys.says_null("sliding_window"));
  if (std::ranges::find(windowed, true) == windowed.end()) return;
  if (!is_on || size == 0) {
    throw keys.error(is_on ? "sliding_window" : "use_sliding_window",
                     "layers have windows, and nothing says how large");
  }
  for (size_t i = 0; i < windowed.size(); ++i) kinds.windows[i] = windowed[i] ? size : 0;
}

void write_windows(Json& json, const LayerKinds& kinds, bool has_switch) {
  const int64_t size = std::ranges::max(kinds.windows);
  if (size == 0) {
    if (!has_switch) json["sliding_window"] = nullptr;
    return;
  }
  if (has_switch) json["use_sliding_window"] = true;
  json["sliding_window"] = size;
  json["layer_types"] = Json::array();
  for (const int64_t window : kinds.windows) json["layer_types"].push_back(window > 0 ? kSliding : kFull);
}

void read_dense_layers(Keys& keys, LayerKinds& kinds) {
  const int64_t step = keys.at_least(1, {"decoder_sparse_step"}, 1);
  const Json* layers = keys.find("mlp_only_layers");
  if (layers != nullptr && !layers->is_array()) throw keys.error("mlp_only_layers", "must be a list of layers");
  for (int64_t i = 0; i < std::ssize(kinds.dense); ++i) {
    const bool is_listed = layers != nullptr && std::ranges::find(*layers, Json(i)) != layers->end();
    kinds.dense[static_cast<size_t>(i)] = is_listed || (i + 1) % step != 0 ? 1 : 0;
  }
}

void write_dense_layers(Json& json, const LayerKinds& kinds) {
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  for (size_t i = 0; i < kinds.dense.size(); ++i) {
    if (kinds.dense[i] != 0) json["mlp_only_layers"].push_back(i);
  }
}

int64_t written_dense_dim(const ModelConfig& config) {
  const LayerKinds kinds = layer_kinds(config);
  const bool has_dense = std::ranges::find(kinds.dense, 1) != kinds.dense.end();
  return has_dense ? config.dense_dim : ModelConfig().dense_dim;
}

int64_t written_shared_dim(const MoeConfig& moe) {
  return moe.shared_dim > 0 ? moe.shared_dim : moe.num_shared_experts * moe.expert_dim;
}

void read_groups(Keys& keys, MoeConfig& moe) {
  moe.num_groups = keys.at_least(1, {"n_group"});
  moe.top_groups = keys.at_least(1, {"topk_group"});
  if (moe.top_groups > moe.num_groups) {
    throw keys.error("topk_group", fmt::format("there are only {} groups", moe.num_groups));
  }
}

void write_groups(Json& json, const MoeConfig& moe) {
  json["n_group"] = moe.num_groups;
  json["topk_group"] = moe.num_groups == 1 ? 1 : moe.top_groups;
}

void set_softmax_router(MoeConfig& moe) {
  moe.score = ScoreFunction::kSoftmax;
  moe.bias_rate = 0.0;
}

void require_no_shared_experts(Fit& fit, const MoeConfig& moe) {
  fit.require(moe.num_shared_experts == 0, "model.moe.num_shared_experts", "none");
}

void require_softmax_router(Fit& fit, const MoeConfig& moe) {
  fit.require(moe.score == ScoreFunction::kSoftmax, "model.moe.score", "softmax");
  fit.require(moe.num_groups == 1, "model.moe.num_groups", "no groups of experts");
  fit.require(moe.routed_scale == 1.0, "model.moe.routed_scale", "no factor of the weights");
  fit.require(moe.bias_rate == 0.0, "model.moe.bias_rate", "no selection bias");
}

void require_plain_shared_experts(Fit& fit, const MoeConfig& moe, int64_t min) {
  fit.require(moe.num_shared_experts >= min, "model.moe.num_shared_experts", fmt::format("{} or more", min));
  if (moe.num_shared_experts == 0) return;
  fit.require(moe.shared_dim == 0 || moe.shared_dim == moe.num_shared_experts * moe.expert_dim, "model.moe.shared_dim",
              "shared experts as wide as others");
  fit.require(!moe.shared_gate, "model.moe.shared_gate", "no gate of shared experts");
}

void require_no_dense_layers(Fit& fit, const ModelConfig& config) {
  fit.require(config.num_dense_layers == 0, "model.num_dense_layers", "experts in every layer");
}

}  // namespace nmoe
