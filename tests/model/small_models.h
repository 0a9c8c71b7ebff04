// Models small enough for finite differences, each with another selection of features.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace nmoe::test {

struct SmallModel {
  std::string name;
  ModelConfig config;
};

// Big enough that no gate is close to a tie, small enough to differentiate numerically.
inline ModelConfig base_model() {
  ModelConfig config;
  config.vocab_size = 11;
  config.dim = 6;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_dense_layers = 1;
  config.dense_dim = 5;
  config.mla = {.q_lora_rank = 0, .kv_lora_rank = 4, .qk_nope_head_dim = 3, .qk_rope_head_dim = 2, .v_head_dim = 5};
  config.gqa = {.num_kv_heads = 1, .head_dim = 4, .qk_norm = true};
  config.moe = {.num_experts = 5, .top_k = 2, .expert_dim = 3};
  // Standard deviations of the order of 1: at 0.02 most gradients would drown in rounding.
  config.init = {.std = 0.5, .embedding_std = 1.0, .router_std = 1.0, .truncation = 3.0, .depth_scaled_outputs = true};
  return config;
}

// With a rule whose base has other sizes, so that every kind of factor is there.
inline std::vector<SmallModel> scaled_models() {
  SmallModel mla{"mla_moe_completep", base_model()}, tied{"gqa_tied_mup", base_model()};
  mla.config.num_layers = 3;
  mla.config.scaling.rule = ScalingRule::kCompleteP;
  mla.config.scaling.base.sizes = {{"dim", 4}, {"num_layers", 2}, {"mla.qk_nope_head_dim", 2}, {"moe.expert_dim", 2}};
  tied.config.attention = PartKind::kGqa;
  tied.config.tied_head = true;
  tied.config.scaling.rule = ScalingRule::kMup;
  tied.config.scaling.base.sizes = {{"dim", 4}, {"gqa.head_dim", 2}, {"moe.num_experts", 3}};
  return {mla, tied};
}

inline std::vector<SmallModel> small_models() {
  std::vector<SmallModel> models;
  const auto add = [&](const std::string& name, auto&& change) {
    models.push_back({name, base_model()});
    change(models.back().config);
  };
  add("mla_moe", [](ModelConfig&) {});
  add("mla_query_latent_yarn", [](ModelConfig& c) {
    c.mla.q_lora_rank = 3;
    c.yarn = {.factor = 4.0, .original_max_positions = 4, .mscale = 1.0, .mscale_all_dim = 0.7};
  });
  add("gqa_qk_norm_windows", [](ModelConfig& c) {
    c.attention = PartKind::kGqa;
    c.rope.layout = RopeLayout::kHalfSplit;
    c.num_layers = 3;
    c.window = 2;
    c.attn_global_every = 2;
  });
  add("dense_relu2_tied", [](ModelConfig& c) {
    c.attention = PartKind::kGqa;
    c.gqa.qk_norm = false;
    c.gqa.num_kv_heads = 2;
    c.moe.num_experts = 0;
    c.activation = Activation::kReluSquared;
    c.tied_head = true;
  });
  add("softmax_no_shared_unnormalised", [](ModelConfig& c) {
    c.moe.score = ScoreFunction::kSoftmax;
    c.moe.num_shared_experts = 0;
    c.moe.normalise_weights = false;
    c.moe.routed_scale = 2.5;
    c.moe.balance_loss = 0.3;
    c.moe.z_loss = 0.05;
  });
  add("groups_and_balance_loss", [](ModelConfig& c) {
    c.moe.num_experts = 6;
    c.moe.num_groups = 3;
    c.moe.top_groups = 2;
    c.moe.balance_loss = 0.5;
    c.moe.z_loss = 0.02;
    c.num_dense_layers = 0;
    c.activation = Activation::kReluSquared;
  });
  // Two kinds of mixer with angle tables of their own, a window, and widths by layer.
  add("mla_and_gqa_layers", [](ModelConfig& c) { c.layers = "gqa:2/moe:4, mla/moe, gqa/dense:4"; });
  // Layers of a single part, and of two beside them; the last is a mixer, or routes.
  add("single_parts", [](ModelConfig& c) { c.layers = "gqa:2, moe, mla/dense, dense:4, moe:4, mla"; });
  add("single_parts_tied", [](ModelConfig& c) {
    c.layers = "dense, gqa, gqa/moe, moe";
    c.tied_head = true;
  });
  // Attention without rotary positions, in layers of its own and beside others; heads of an odd size.
  add("without_rotation", [](ModelConfig& c) { c.layers = "gqa_nope:2, gqa/moe, gqa_nope, dense, gqa_nope/moe"; });
  add("never_rotates", [](ModelConfig& c) {
    c.layers = "gqa_nope, dense, gqa_nope";
    c.gqa = {.num_kv_heads = 2, .head_dim = 3, .qk_norm = false};
    c.moe.num_experts = 0;
  });
  // Biases, norms over all heads, rotation of a part of each head, with frequencies of longer contexts.
  add("gqa_biases_part_rotated", [](ModelConfig& c) {
    c.attention = PartKind::kGqa;
    c.rope = {.layout = RopeLayout::kHalfSplit, .scaling = RopeScaling::kLinear, .factor = 2.0};
    c.gqa = {.num_kv_heads = 1, .head_dim = 6, .qk_norm = false, .rotary_dim = 4, .bias = AttentionBias::kQkv};
  });
  add("gqa_all_biases_norm_over_heads", [](ModelConfig& c) {
    c.layers = "gqa:2/moe, gqa_nope/dense, gqa/moe";
    c.rope = {.theta = 10.0, .scaling = RopeScaling::kLlama3, .factor = 4.0, .original_max_positions = 16};
    c.gqa = {.num_kv_heads = 2,
             .head_dim = 4,
             .qk_norm = true,
             .qk_norm_over = QkNormOver::kAllHeads,
             .bias = AttentionBias::kAll};
  });
  add("latent_experts", [](ModelConfig& c) {
    c.moe.latent_dim = 4;
    c.moe.shared_dim = 5;
    c.activation = Activation::kReluSquared;
  });
  add("latent_experts_alone", [](ModelConfig& c) {
    c.layers = "gqa:2, moe, mla/dense, moe:4";
    c.moe.latent_dim = 7;
    c.moe.num_shared_experts = 0;
  });
  // Sinks and biases everywhere, and hidden units of which some are clamped.
  add("sinks_and_expert_biases", [](ModelConfig& c) {
    c.layers = "gqa:2/moe, gqa/moe, gqa_nope/dense";
    c.gqa = {.num_kv_heads = 1, .head_dim = 4, .bias = AttentionBias::kAll, .sinks = true};
    c.yarn = {.factor = 4.0, .original_max_positions = 4, .truncate = false};
    c.moe.score = ScoreFunction::kSoftmax;
    c.moe.num_shared_experts = 0;
    c.moe.biases = true;
    c.activation = Activation::kClampedSwiGlu;
    c.init.std = 1.5;
  });
  // Recurrent layers alone and beside others: chunks shorter than a sequence, groups, and more taps than tokens.
  add("mamba2", [](ModelConfig& c) {
    c.layers = "mamba2, dense, mamba2";
    c.mamba2 = {.num_heads = 2,
                .head_dim = 3,
                .state_dim = 2,
                .num_groups = 1,
                .conv_width = 4,
                .chunk = 2,
                .step_min = 0.2,
                .step_max = 0.5};
    c.moe.num_experts = 0;
  });
  add("mamba2_hybrid", [](ModelConfig& c) {
    c.layers = "mamba2, moe, gqa_nope, mamba2/moe, moe";
    c.mamba2 = {.num_heads = 4,
                .head_dim = 2,
                .state_dim = 3,
                .num_groups = 2,
                .conv_width = 3,
                .chunk = 4,
                .step_min = 0.2,
                .step_max = 0.5};
  });
  add("gated_deltanet", [](ModelConfig& c) {
    c.layers = "gated_deltanet, dense, gated_deltanet";
    c.gated_deltanet = {.num_key_heads = 1, .num_value_heads = 2, .key_head_dim = 3, .value_head_dim = 2};
    c.moe.num_experts = 0;
  });
  add("gated_deltanet_hybrid", [](ModelConfig& c) {
    c.layers = "gated_deltanet, moe, gqa, gated_deltanet/moe, mamba2";
    c.gated_deltanet = {
        .num_key_heads = 2, .num_value_heads = 4, .key_head_dim = 2, .value_head_dim = 3, .conv_width = 3};
    c.mamba2 = {.num_heads = 2, .head_dim = 3, .state_dim = 2, .chunk = 2, .step_min = 0.2, .step_max = 0.5};
  });
  // What Qwen3-Next has besides.
  add("gates_and_zero_centred_norms", [](ModelConfig& c) {
    c.layers = "gated_deltanet/moe, gqa/moe";
    c.gated_deltanet = {.num_key_heads = 1, .num_value_heads = 2, .key_head_dim = 3, .value_head_dim = 2};
    c.gqa.qk_norm = true;
    c.gqa.output_gate = true;
    c.zero_centred_norms = true;
  });
  add("gated_shared_experts", [](ModelConfig& c) {
    c.moe.num_shared_experts = 1;
    c.moe.shared_dim = 5;
    c.moe.shared_gate = true;
    c.moe.score = ScoreFunction::kSoftmax;
  });
  return models;
}

}  // namespace nmoe::test
