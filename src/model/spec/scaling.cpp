#include "model/spec/scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/scaling.h"

namespace nmoe {
namespace {

constexpr const char* kSameKinds = "let the base have parts and options of the same kinds, in other sizes";

enum class Role { kHidden, kOutput, kHead, kEmbedding, kVector };

Role role_of(const WeightSpec& weight) {
  if (weight.is_stat) return Role::kVector;
  if (weight.group == WeightGroup::kRouter) return Role::kOutput;
  if (weight.group == WeightGroup::kRest) return weight.name == "head" ? Role::kHead : Role::kEmbedding;
  return Role::kHidden;
}

bool is_in_layers(std::string_view name) { return name.starts_with("layers."); }

// "layers.*.attention.q" of "layers.3.attention.q"; other names as they are.
std::string without_layer(const std::string& name) {
  if (!is_in_layers(name)) return name;
  const size_t begin = std::string_view("layers.").size();
  return fmt::format("layers.*{}", name.substr(name.find('.', begin)));
}

double ratio(int64_t of_model, int64_t of_base) { return static_cast<double>(of_model) / static_cast<double>(of_base); }

// The weights of a base model by name.
class BaseWeights {
 public:
  explicit BaseWeights(const std::vector<WeightSpec>& weights) : weights_(weights) {}

  // The one of the same name, if its layer has it; else the one that all of the base's layers have in common.
  const WeightSpec& of(const WeightSpec& weight, bool same_layers) const {
    if (same_layers) {
      const auto same = std::ranges::find(weights_, weight.name, &WeightSpec::name);
      if (same != weights_.end()) return *same;
    }
    const std::string name = without_layer(weight.name);
    const WeightSpec* found = nullptr;
    for (const WeightSpec& candidate : weights_) {
      if (without_layer(candidate.name) != name) continue;
      if (found != nullptr && candidate.shape != found->shape) {
        throw usage_error(
            fmt::format("model.scaling.base: its {} are {} and {} in different layers, and its layers are "
                        "not the model's",
                        name, found->shape, candidate.shape),
            "give the base as many layers as the model has");
      }
      if (found == nullptr) found = &candidate;
    }
    if (found == nullptr) {
      throw usage_error(fmt::format("model.scaling.base: it has no {}, which the model has", name), kSameKinds);
    }
    return *found;
  }

  // That the model has all of these, in whatever layer.
  void check_all_in(const std::vector<WeightSpec>& model) const {
    for (const WeightSpec& weight : weights_) {
      const std::string name = without_layer(weight.name);
      const auto is_same = [&](const WeightSpec& of_model) { return without_layer(of_model.name) == name; };
      if (std::ranges::any_of(model, is_same)) continue;
      throw usage_error(fmt::format("model.scaling.base: it has {}, which the model has not", name), kSameKinds);
    }
  }

 private:
  const std::vector<WeightSpec>& weights_;
};

// sqrt(out / in) over sqrt(max(out, in)), of one of Muon's matrices.
double muon_scale(const WeightSpec& weight) {
  const Shape matrix = weight.as_matrices(weight.shape);
  const auto out = static_cast<double>(matrix[-2]), in = static_cast<double>(matrix[-1]);
  return std::sqrt(out / in) / std::sqrt(std::max(out, in));
}

// Without multipliers.
WeightScaling plain_factors(const WeightSpec& weight, const WeightSpec& base) {
  const Shape& shape = weight.shape;
  if (weight.is_stat) return {.eps = 1.0 / ratio(shape.num_elements(), base.shape.num_elements())};
  const double in = ratio(shape[-1], base.shape[-1]), out = ratio(shape[-2], base.shape[-2]);
  switch (role_of(weight)) {
    case Role::kHidden: {
      const double experts = weight.per_expert ? ratio(shape[0], base.shape[0]) : 1.0;
      return {.spread = 1.0 / std::sqrt(in),
              .adamw_rate = 1.0 / in,
              .muon_rate = muon_scale(weight) / muon_scale(base),
              .eps = 1.0 / (out * experts)};
    }
    case Role::kOutput:
    case Role::kHead:
      return {.spread = 1.0 / in, .adamw_rate = 1.0 / in, .eps = 1.0 / out};
    case Role::kEmbedding:
      return {.eps = 1.0 / in};
    case Role::kVector:
      break;
  }
  return {};
}

// What stores c W in place of a weight W that is multiplied by c.
void multiply(WeightScaling& factors, double c) {
  factors.spread *= c;
  factors.adamw_rate *= c;
  factors.muon_rate *= c;
  factors.eps /= c;
}

// The size of a query head in attention that has queries; 0 in none.
int64_t query_dim(const WeightSpec& weight, const ModelConfig& config) {
  if (!weight.scales_logits) return 0;
  return weight.mixer == PartKind::kMla ? config.mla.qk_nope_head_dim + config.mla.qk_rope_head_dim
                                        : config.gqa.head_dim;
}

void check_query_bias(const ModelConfig& config, const ModelConfig& base) {
  const bool is_bound = config.gqa.bias != AttentionBias::kNone && !config.gqa.qk_norm;
  if (!is_bound || config.gqa.head_dim == base.gqa.head_dim) return;
  throw usage_error(
      fmt::format(
          "model.scaling: model.gqa.head_dim = {}, with {} in the base, and queries have a bias (model.gqa.bias) "
          "that is one weight with those of keys and values, so that no weight of theirs alone scales logits",
          config.gqa.head_dim, base.gqa.head_dim),
      "give the base heads of the same size, set model.gqa.qk_norm = true, or leave out model.gqa.bias");
}

std::string_view describe_role(Role role) {
  switch (role) {
    case Role::kHidden:
      return "hidden";
    case Role::kOutput:
      return "output";
    case Role::kHead:
      return "head";
    case Role::kEmbedding:
      return "embedding";
    case Role::kVector:
      break;
  }
  return "vector";
}

}  // namespace

std::string sources_of_scaling(const WeightSpec& weight, ScalingRule rule, OptimizerKind optimizer) {
  const Role role = role_of(weight);
  std::string sources = "2203.03466 table 3";
  if (weight.per_expert) sources = "2508.09752 (experts are hidden)";
  if (role == Role::kOutput) sources = "2508.09752 (routers are outputs)";
  if (role == Role::kHidden && optimizer == OptimizerKind::kMuon) sources += ", rate: 2310.17813, 2602.20937";
  if (rule == ScalingRule::kCompleteP && is_in_layers(weight.name) && weight.to_residual) {
    sources += ", depth: 2505.01618 table 1";
  }
  if (optimizer == OptimizerKind::kAdamW) sources += ", eps: 2505.01618 table 1";
  return sources;
}

void apply_scaling(const ModelConfig& config, const std::vector<WeightSpec>& base, std::vector<WeightSpec>& weights) {
  const ModelConfig base_config = scaling_base(config);
  check_query_bias(config, base_config);
  const std::vector<LayerSpec> layers = layer_specs(config), base_layers = layer_specs(base_config);
  const double m = ratio(config.dim, base_config.dim);
  const double l = config.scaling.rule == ScalingRule::kCompleteP
                       ? ratio(std::ssize(parts_of(layers)), std::ssize(parts_of(base_layers)))
                       : 1.0;
  const BaseWeights base_weights(base);
  base_weights.check_all_in(weights);
  for (WeightSpec& weight : weights) {
    if (!weight.is_trained()) continue;
    const WeightSpec& of_base = base_weights.of(weight, layers.size() == base_layers.size());
    WeightScaling factors = plain_factors(weight, of_base);
    if (is_in_layers(weight.name)) {
      factors.eps /= l;
      if (weight.to_residual) multiply(factors, 1.0 / l);
    }
    if (config.tied_head && weight.name.ends_with("final_norm")) multiply(factors, 1.0 / m);
    if (const int64_t dim = query_dim(weight, config); dim > 0) {
      multiply(factors, std::sqrt(ratio(query_dim(weight, base_config), dim)));
    }
    weight.scaling = factors;
    weight.init_std = of_base.init_std * factors.spread;
  }
}

std::vector<ScalingRow> scaling_rows(const ModelConfig& config, const std::vector<WeightSpec>& base,
                                     const std::vector<WeightSpec>& weights) {
  const BaseWeights base_weights(base);
  const bool same_layers = layer_specs(config).size() == layer_specs(scaling_base(config)).size();
  std::vector<ScalingRow> rows;
  for (const WeightSpec& weight : weights) {
    if (!weight.is_trained()) continue;
    const std::string name = without_layer(weight.name);
    const auto is_same = [&](const ScalingRow& row) {
      return row.name == name && row.weight.shape == weight.shape && row.weight.scaling == weight.scaling;
    };
    if (const auto row = std::ranges::find_if(rows, is_same); row != rows.end()) {
      ++row->count;
      continue;
    }
    rows.push_back({.name = name,
                    .weight = weight,
                    .base_shape = base_weights.of(weight, same_layers).shape,
                    .role = describe_role(role_of(weight))});
  }
  return rows;
}

std::string note_on_scaling(const ModelConfig& config) {
  if (config.scaling.rule == ScalingRule::kNone || config.moe.num_experts == 0) return "";
  const ModelConfig base = scaling_base(config);
  const auto granularity = [](const ModelConfig& model) { return ratio(model.dim, model.moe.expert_dim); };
  const auto share = [](const ModelConfig& model) { return ratio(model.moe.top_k, model.moe.num_experts); };
  std::string what;
  if (granularity(config) != granularity(base)) {
    what = fmt::format("model.dim / model.moe.expert_dim is {:.4g}, the base's {:.4g}", granularity(config),
                       granularity(base));
  }
  if (share(config) != share(base)) {
    what += fmt::format("{}model.moe.top_k / num_experts is {:.4g}, the base's {:.4g}", what.empty() ? "" : "; ",
                        share(config), share(base));
  }
  return what.empty() ? "" : fmt::format("NOTE: {}: rates are not known to carry over there (arXiv 2508.09752)", what);
}

}  // namespace nmoe
