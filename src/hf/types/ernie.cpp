// ERNIE-4.5-MoE: grouped-query attention with interleaved pairs; routers by softmax with a selection bias.
#include <algorithm>
#include <optional>

#include "hf/config_json_keys.h"
#include "hf/types/types.h"

namespace nmoe {
namespace {

using Json = Keys::Json;

constexpr GqaTraits kErnieTraits = {};

// Of the layers from start to end (-1: the last), every interval-th of all has experts.
struct SparseLayers {
  int64_t start = 0, end = -1, interval = 1;

  LayerKinds kinds(const ModelConfig& config) const {
    LayerKinds kinds(config);
    for (int64_t i = 0; i < config.num_layers; ++i) {
      const bool is_sparse = (i + 1) % interval == 0 && i >= start && (end == -1 || i <= end);
      kinds.dense[static_cast<size_t>(i)] = is_sparse ? 0 : 1;
    }
    return kinds;
  }
};

void read_layers(Keys& keys, ModelConfig& config) {
  const SparseLayers layers = {.start = keys.at_least(0, {"moe_layer_start_index"}),
                               .end = keys.at_least(-1, {"moe_layer_end_index"}, -1),
                               .interval = keys.at_least(1, {"moe_layer_interval"}, 1)};
  set_layers(config, layers.kinds(config));
}

// Nothing where ERNIE's keys cannot say them.
std::optional<SparseLayers> sparse_layers(const ModelConfig& config) {
  const std::vector<char> dense = layer_kinds(config).dense;
  const auto next_from = [&](int64_t layer) {
    return std::find(dense.begin() + layer, dense.end(), 0) - dense.begin();
  };
  const int64_t last_layer = config.num_layers - 1, first = next_from(0);
  if (first > last_layer) return std::nullopt;
  const int64_t second = next_from(first + 1);
  int64_t last = last_layer;
  while (dense[static_cast<size_t>(last)] != 0) --last;
  const SparseLayers found = {.start = first,
                              .end = last == last_layer ? -1 : last,
                              .interval = second > last_layer ? first + 1 : second - first};
  if (found.kinds(config).dense != dense) return std::nullopt;
  return found;
}

void read_ernie(Keys& keys, HfModel& model) {
  ModelConfig& config = model.config;
  MoeConfig& moe = config.moe;
  read_gqa(keys, config, kErnieTraits, /*kv_optional=*/false);
  keys.only("use_bias", false, "it gives MLPs and experts biases, too");
  config.rope.layout = RopeLayout::kInterleaved;
  config.dense_dim = keys.at_least(1, {"intermediate_size"});
  read_layers(keys, config);
  moe.expert_dim = keys.at_least(1, {"moe_intermediate_size"});
  moe.top_k = keys.at_least(1, {"moe_k", "num_experts_per_tok"});
  moe.num_experts = keys.at_least(1, routed_experts_key(model.type));
  moe.num_shared_experts = keys.at_least(0, {"moe_num_shared_experts"}, 2);
  moe.score = ScoreFunction::kSoftmax;
  moe.normalise_weights = true;
  keys.only("moe_norm_min", 1e-12, "sums of weights have no other lower limit here");
  keys.only("output_router_logits", false, "it adds the balance loss to the model's loss");
  model.num_nextn_predict_layers = keys.at_least(0, kNextnKey, 0);
  // Of its releases.
  keys.only("moe_use_aux_free", true, "its routers have a selection bias");
  keys.only("moe_gate", "topk");
  keys.only("hidden_dropout_prob", 0.0, "nothing is dropped here");
  keys.only("compression_ratio", 1.0, "positions are not compressed here");
  for (const char* key : {"moe_capacity", "fuse_rope"}) keys.ignore(key);
}

void write_ernie(Json& json, const HfModel& model) {
  const ModelConfig& config = model.config;
  const MoeConfig& moe = config.moe;
  json["intermediate_size"] = written_dense_dim(config);
  json["moe_intermediate_size"] = moe.expert_dim;
  json[routed_experts_key(model.type).name] = moe.num_experts;
  json["moe_k"] = moe.top_k;
  json["moe_num_shared_experts"] = moe.num_shared_experts;
  const SparseLayers layers = sparse_layers(config).value();
  json["moe_layer_start_index"] = layers.start;
  json["moe_layer_end_index"] = layers.end;
  json["moe_layer_interval"] = layers.interval;
  json["use_bias"] = false;
  write_gqa(json, config);
  if (model.num_nextn_predict_layers > 0) json[kNextnKey.name] = model.num_nextn_predict_layers;
}

void require_ernie(Fit& fit, const ModelConfig& config, ModelType /*type*/) {
  require_gqa(fit, config, kErnieTraits);
  require_plain_shared_experts(fit, config.moe, 0);
  fit.require(sparse_layers(config).has_value(), config.layers.empty() ? "model.num_dense_layers" : "model.layers",
              "experts in every n-th layer from one to another");
  fit.require(config.moe.score == ScoreFunction::kSoftmax, "model.moe.score", "softmax");
  fit.require(config.moe.num_groups == 1, "model.moe.num_groups", "no groups of experts");
  fit.require(config.moe.routed_scale == 1.0, "model.moe.routed_scale", "no factor of the weights");
  fit.require(config.moe.normalise_weights, "model.moe.normalise_weights", "weights that are divided by their sum");
}

}  // namespace

TypeText ernie_text() { return {read_ernie, write_ernie, require_ernie}; }

}  // namespace nmoe
