#include <algorithm>
#include <numeric>

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

void read_no_windows(Keys& keys, const ModelConfig& config, bool has_switch) {
  if (has_switch) {
    keys.only("use_sliding_window", false, "transformers' windows are not nmoe's");
  } else {
    keys.ignore("use_sliding_window");
  }
  // Without a switch a file that says nothing has the windows of transformers' Dots1Config.
  const int64_t first = keys.at_least(0, {"max_window_layers"}, has_switch ? config.num_layers : 62);
  const bool has_window = keys.find("sliding_window") != nullptr || !keys.says_null("sliding_window");
  if (const Json* layers = keys.find("layer_types")) {
    const bool all_full =
        layers->is_array() && std::ranges::all_of(*layers, [](const Json& layer) { return layer == "full_attention"; });
    if (!all_full) keys.lacks("layer_types", "only \"full_attention\" is supported");
  } else if (!has_switch && has_window && first < config.num_layers) {
    keys.lacks("sliding_window", fmt::format("layers from {} on have windows", first));
  }
}

void read_dense_layers(Keys& keys, ModelConfig& config) {
  keys.only("decoder_sparse_step", 1, "in nmoe every layer behind the dense ones has experts");
  config.num_dense_layers = 0;
  const Json* layers = keys.find("mlp_only_layers");
  if (layers == nullptr) return;
  std::set<Json> dense;
  if (layers->is_array()) dense.insert(layers->begin(), layers->end());
  for (const Json& layer : dense) {
    if (layer == config.num_dense_layers) ++config.num_dense_layers;
  }
  if (!layers->is_array() || static_cast<size_t>(config.num_dense_layers) != dense.size()) {
    keys.lacks("mlp_only_layers", "in nmoe dense layers are the first n: 0, 1, ... n - 1");
  }
}

void write_dense_layers(Json& json, const ModelConfig& config) {
  std::vector<int64_t> dense_layers(static_cast<size_t>(config.num_dense_layers));
  std::iota(dense_layers.begin(), dense_layers.end(), 0);
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = dense_layers;
}

int64_t written_dense_dim(const ModelConfig& config) {
  return config.num_dense_layers > 0 ? config.dense_dim : ModelConfig().dense_dim;
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
