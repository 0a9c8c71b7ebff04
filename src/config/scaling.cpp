#include "config/scaling.h"

#include "config/limits.h"

namespace nmoe {
namespace {

constexpr Named<ScalingRule> kRules[] = {
    {ScalingRule::kNone, "none"}, {ScalingRule::kMup, "mup"}, {ScalingRule::kCompleteP, "completep"}};

constexpr BaseSize kSizes[] = {
    {"", "dim", [](ModelConfig& model) -> int64_t& { return model.dim; }},
    {"", "num_layers", [](ModelConfig& model) -> int64_t& { return model.num_layers; }},
    {"", "num_heads", [](ModelConfig& model) -> int64_t& { return model.num_heads; }},
    {"", "num_dense_layers", [](ModelConfig& model) -> int64_t& { return model.num_dense_layers; }},
    {"", "dense_dim", [](ModelConfig& model) -> int64_t& { return model.dense_dim; }},
    {"mla.", "q_lora_rank", [](ModelConfig& model) -> int64_t& { return model.mla.q_lora_rank; }},
    {"mla.", "kv_lora_rank", [](ModelConfig& model) -> int64_t& { return model.mla.kv_lora_rank; }},
    {"mla.", "qk_nope_head_dim", [](ModelConfig& model) -> int64_t& { return model.mla.qk_nope_head_dim; }},
    {"mla.", "qk_rope_head_dim", [](ModelConfig& model) -> int64_t& { return model.mla.qk_rope_head_dim; }},
    {"mla.", "v_head_dim", [](ModelConfig& model) -> int64_t& { return model.mla.v_head_dim; }},
    {"gqa.", "num_kv_heads", [](ModelConfig& model) -> int64_t& { return model.gqa.num_kv_heads; }},
    {"gqa.", "head_dim", [](ModelConfig& model) -> int64_t& { return model.gqa.head_dim; }},
    {"mamba2.", "num_heads", [](ModelConfig& model) -> int64_t& { return model.mamba2.num_heads; }},
    {"mamba2.", "num_groups", [](ModelConfig& model) -> int64_t& { return model.mamba2.num_groups; }},
    {"gated_deltanet.", "num_key_heads",
     [](ModelConfig& model) -> int64_t& { return model.gated_deltanet.num_key_heads; }},
    {"gated_deltanet.", "num_value_heads",
     [](ModelConfig& model) -> int64_t& { return model.gated_deltanet.num_value_heads; }},
    {"moe.", "num_experts", [](ModelConfig& model) -> int64_t& { return model.moe.num_experts; }},
    {"moe.", "top_k", [](ModelConfig& model) -> int64_t& { return model.moe.top_k; }},
    {"moe.", "expert_dim", [](ModelConfig& model) -> int64_t& { return model.moe.expert_dim; }},
    {"moe.", "latent_dim", [](ModelConfig& model) -> int64_t& { return model.moe.latent_dim; }},
    {"moe.", "num_shared_experts", [](ModelConfig& model) -> int64_t& { return model.moe.num_shared_experts; }},
    {"moe.", "shared_dim", [](ModelConfig& model) -> int64_t& { return model.moe.shared_dim; }},
};

}  // namespace

std::span<const BaseSize> base_sizes() { return kSizes; }

void describe_scaling(FieldList& f, ScalingConfig& scaling) {
  const bool has_rule = scaling.rule != ScalingRule::kNone;
  constexpr std::string_view kRule = "model.scaling.rule = \"mup\" or \"completep\"";
  f.section("model.scaling");
  f.key("rule", scaling.rule, kRules, "how rates carry over from base").leave_out_if(!has_rule);
  std::string_view section = "-";
  ScalingBase& base = scaling.base;
  for (const BaseSize& size : kSizes) {
    if (size.section != section) {
      section = size.section;
      std::string name = "model.scaling.base";
      if (!section.empty()) name += fmt::format(".{}", section.substr(0, section.size() - 1));
      f.section(name);
      f.following_need(has_rule, kRule);
    }
    const std::string key = size.key();
    f.key_of(
         size.name, kSizeOrNone, fmt::format("model.{} of the base; 0: the model's", key),
         [&base, key] {
           const auto found = base.sizes.find(key);
           return found == base.sizes.end() ? int64_t{0} : found->second;
         },
         [&base, key](int64_t value) {
           if (value == 0) {
             base.sizes.erase(key);
           } else {
             base.sizes[key] = value;
           }
         })
        .leave_out_if(!base.sizes.contains(key));
    if (key != "dim") continue;
    f.key("layers", base.layers, kBasePattern, "model.layers of the base; empty: the model's")
        .leave_out_if(base.layers.empty());
  }
}

ModelConfig scaling_base(const ModelConfig& model) {
  ModelConfig base = model;
  for (const BaseSize& size : kSizes) {
    const auto found = model.scaling.base.sizes.find(size.key());
    if (found != model.scaling.base.sizes.end()) size.of(base) = found->second;
  }
  if (!model.scaling.base.layers.empty()) base.layers = model.scaling.base.layers;
  base.scaling = {};
  return base;
}

}  // namespace nmoe
