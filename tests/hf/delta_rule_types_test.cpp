// Types with delta rules, by published hyperparameters.
#include <gtest/gtest.h>

#include "hf/published_models.h"
#include "hf/tensor_map.h"

namespace nmoe {
namespace {

using test::common_keys;
using test::contains;
using test::elements;
using test::error_of;
using test::Json;
using test::merged;
using test::printed_model;
using test::read_json;

Json qwen3_next_80b() {
  return merged(common_keys(), R"({"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
    "attention_bias": false, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645,
    "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048, "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
    "moe_intermediate_size": 512, "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512,
    "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2, "output_router_logits": false,
    "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512, "use_sliding_window": false,
    "vocab_size": 151936})");
}

Json kimi_linear_48b() {
  return merged(common_keys(), R"({"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
    "bos_token_id": 163584, "eos_token_id": 163586, "first_k_dense_replace": 1, "head_dim": 72, "hidden_size": 2304,
    "intermediate_size": 9216, "kv_lora_rank": 512,
    "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128,
      "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
      "num_heads": 32, "short_conv_kernel_size": 4},
    "mla_use_nope": true, "model_max_length": 1048576, "moe_intermediate_size": 1024, "moe_layer_freq": 1,
    "moe_renormalize": true, "moe_router_activation_func": "sigmoid", "num_attention_heads": 32, "num_expert_group": 1,
    "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27, "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0, "num_shared_experts": 1, "pad_token_id": 163839, "q_lora_rank": null,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446, "topk_group": 1, "use_grouped_topk": true, "v_head_dim": 128,
    "vocab_size": 163840})");
}

std::string refusal(const Json& json, const char* change) {
  Json changed = json;
  changed.merge_patch(Json::parse(change));
  return error_of([&] { read_json(changed); }).what();
}

TEST(DeltaRuleTypes, RoundTrip) {
  test::expect_round_trip(qwen3_next_80b());
  // Layers in another order and without experts, as transformers 5 writes them.
  Json later = merged(qwen3_next_80b(), R"({"num_hidden_layers": 4, "mlp_only_layers": [1],
    "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.5}})");
  for (const char* key : {"full_attention_interval", "rope_theta", "rope_scaling", "partial_rotary_factor"}) {
    later.erase(key);
  }
  test::expect_round_trip(later);
  EXPECT_EQ(read_json(later).config.layers, "gqa/moe, gated_deltanet/dense, gated_deltanet/moe, gqa/moe");
  EXPECT_EQ(read_json(later).config.gqa.rotary_dim, 128);
  test::expect_round_trip(merged(later, R"({"num_experts": 0, "mlp_only_layers": []})"));
  test::expect_round_trip(kimi_linear_48b());
  test::expect_round_trip(merged(kimi_linear_48b(), R"({"first_k_dense_replace": 0, "num_shared_experts": 0,
    "moe_renormalize": false, "tie_word_embeddings": true})"));
}

TEST(DeltaRuleTypes, ConfigurationsAtPublishedSizesAreThoseModels) {
  test::expect_is_published_model("qwen3-next-80b-a3b", qwen3_next_80b());
  test::expect_is_published_model("kimi-linear-48b-a3b", kimi_linear_48b());
}

TEST(DeltaRuleTypes, ReadsQwenNext) {
  const HfModel model = read_json(qwen3_next_80b());
  const ModelConfig& config = model.config;
  EXPECT_EQ(config.layers, "12 x (3 x gated_deltanet/moe, gqa/moe)");
  EXPECT_TRUE(config.zero_centred_norms);
  EXPECT_TRUE(config.gqa.output_gate);
  EXPECT_TRUE(config.gqa.qk_norm);
  EXPECT_EQ(config.gqa.rotary_dim, 64);
  EXPECT_EQ(config.moe.score, ScoreFunction::kSoftmax);
  EXPECT_TRUE(config.moe.shared_gate);
  EXPECT_EQ(model.num_nextn_predict_layers, 1) << "which no key says";
  Json bare = qwen3_next_80b();
  for (const char* key :
       {"full_attention_interval", "head_dim", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads",
        "linear_num_value_heads", "linear_value_head_dim", "norm_topk_prob", "num_experts", "num_experts_per_tok",
        "moe_intermediate_size", "shared_expert_intermediate_size", "partial_rotary_factor", "mlp_only_layers"}) {
    bare.erase(key);
  }
  EXPECT_EQ(printed_model(read_json(bare).config), printed_model(config)) << "transformers' defaults";
}

TEST(DeltaRuleTypes, RefusesWithTheKeyWhatQwenNextHasNot) {
  for (const auto& [change, says] :
       {std::pair(R"({"attention_bias": true})", "attention_bias = true"),
        {R"({"hidden_act": "gelu"})", "hidden_act = \"gelu\""},
        {R"({"use_sliding_window": true})", "use_sliding_window = true"},
        {R"({"output_router_logits": true})", "output_router_logits = true"},
        {R"({"layer_types": ["full_attention"]})", "must be a list of 48 types"},
        {R"({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})", "the type has no \"sliding_attention\""},
        {R"({"num_hidden_layers": 1, "layer_types": ["full_attention"]})",
         "full_attention_interval = 4 says otherwise"},
        {R"({"num_hidden_layers": 3})", "models without attention are not supported"},
        {R"({"linear_num_key_heads": 5})", "model.gated_deltanet.num_key_heads"},
        {R"({"linear_conv_kernel_dim": 9})", "model.gated_deltanet.conv_width"},
        {R"({"rope_scaling": {"rope_type": "dynamic"}})", "rope_scaling.rope_type = \"dynamic\""},
        {R"({"partial_rotary_factor": 0.005})", "partial_rotary_factor"},
        {R"({"linear_gate": 1})", "linear_gate = 1: nmoe does not know this key"}}) {
    EXPECT_TRUE(contains(refusal(qwen3_next_80b(), change), says))
        << change << ": " << refusal(qwen3_next_80b(), change);
  }
}

TEST(DeltaRuleTypes, ObstaclesOfQwenNextHaveNames) {
  const auto obstacle = [](auto&& change) {
    HfModel model = read_json(qwen3_next_80b());
    change(model.config);
    const std::vector<std::string> found = obstacles_to(model.config, model.type);
    return found.size() == 1 ? found.front() : fmt::format("{} obstacles", found.size());
  };
  using C = ModelConfig;
  EXPECT_EQ(obstacle([](C& c) { c.zero_centred_norms = false; }),
            "model.zero_centred_norms = false: qwen3_next has zero-centred norms");
  EXPECT_EQ(obstacle([](C& c) { c.gqa.output_gate = false; }),
            "model.gqa.output_gate = false: qwen3_next has a gate of attention's output");
  EXPECT_EQ(obstacle([](C& c) { c.gqa.qk_norm = false; }),
            "model.gqa.qk_norm = false: qwen3_next has norms of queries and keys");
  EXPECT_EQ(obstacle([](C& c) { c.moe.shared_gate = false; }),
            "model.moe.shared_gate = false: qwen3_next has a gate of its shared experts");
  EXPECT_EQ(obstacle([](C& c) { c.moe.routed_scale = 2.0; }),
            "model.moe.routed_scale = 2.0: qwen3_next has no factor of the weights");
  EXPECT_EQ(obstacle([](C& c) { c.layers = "2 x gated_deltanet/moe"; }),
            "model.layers = \"2 x gated_deltanet/moe\": qwen3_next has some layer of attention");
  EXPECT_EQ(obstacle([](C& c) { c.layers = "gated_deltanet/moe, gqa:8/moe"; }),
            "model.layers = \"gated_deltanet/moe, gqa:8/moe\": qwen3_next has layers of one of gated_deltanet, gqa and "
            "a feed-forward part, without windows");
  EXPECT_EQ(obstacle([](C& c) { c.layers = "gated_deltanet/moe:64, gqa/moe"; }),
            "model.layers = \"gated_deltanet/moe:64, gqa/moe\": qwen3_next has MLPs of one width, and experts of one");
  EXPECT_EQ(obstacle([](C& c) { c.mtp = {.depth = 1, .layers = "gated_deltanet/moe"}; }),
            "model.mtp.layers = \"gated_deltanet/moe\": qwen3_next has a module of one layer of attention, as the "
            "model's");
  EXPECT_EQ(obstacle([](C& c) { c.mtp.depth = 2; }),
            "model.mtp.shared = false: qwen3_next has one module for all depths");
}

// By the shapes of transformers' tensors, without the module for further tokens.
TEST(DeltaRuleTypes, QwenNextHasTheElementsOfItsTensors) {
  const int64_t D = 2048, experts = 513 * 3 * 512 * D + 512 * D + D, norms = 2 * D;
  const int64_t recurrent = 12288 * D + 64 * D + 8192 * 4 + 32 + 32 + 128 + D * 4096;
  const int64_t attention = 8192 * D + 2 * 512 * D + D * 4096 + 2 * 256;
  const int64_t all = 2 * 151936 * D + D + 48 * (experts + norms) + 36 * recurrent + 12 * attention;
  EXPECT_EQ(all, 79'674'391'296);
  const int64_t selection_biases = 48 * 512;  // which the type has not, and this model does not move
  EXPECT_EQ(elements(load_config(fs::path(NMOE_SOURCE_DIR) / "configs/models/qwen3-next-80b-a3b.toml").model),
            all + selection_biases);
}

TEST(DeltaRuleTypes, ReadsKimiLinear) {
  const ModelConfig config = read_json(kimi_linear_48b()).config;
  EXPECT_EQ(config.layers,
            "kda/dense, 2 x kda/moe, mla_nope/moe, 3 x kda/moe, mla_nope/moe, 3 x kda/moe, mla_nope/moe, 3 x kda/moe, "
            "mla_nope/moe, 3 x kda/moe, mla_nope/moe, 3 x kda/moe, mla_nope/moe, 2 x kda/moe, mla_nope/moe");
  EXPECT_EQ(config.max_positions, 1048576);
  EXPECT_EQ(config.mla.norm_eps, 1e-6) << "the class's own, whatever rms_norm_eps";
  EXPECT_EQ(config.moe.routed_scale, 2.446);
  EXPECT_GT(config.moe.bias_rate, 0.0);
}

TEST(DeltaRuleTypes, RefusesWithTheKeyWhatKimiLinearHasNot) {
  for (const auto& [change, says] :
       {std::pair(R"({"mla_use_nope": false})", "mla_use_nope = false: latent attention of the type does not rotate"),
        {R"({"mla_use_nope": null})", "mla_use_nope: is missing"},
        {R"({"q_lora_rank": 64})", "q_lora_rank = 64"},
        {R"({"num_key_value_heads": 8})", "num_key_value_heads = 8"},
        {R"({"moe_router_activation_func": "softmax"})", "moe_router_activation_func = \"softmax\""},
        {R"({"num_experts_per_token": 1})", "num_experts_per_token = 1"},
        {R"({"num_expert_group": 8})", "num_expert_group = 8"},
        {R"({"use_grouped_topk": false})", "use_grouped_topk = false"},
        {R"({"moe_layer_freq": 2})", "moe_layer_freq = 2"},
        {R"({"num_nextn_predict_layers": 1})", "num_nextn_predict_layers = 1"},
        {R"({"mla_use_output_gate": true})", "mla_use_output_gate = true: nmoe does not know this key"},
        {R"({"hidden_act": "situ"})", "hidden_act = \"situ\""},
        {R"({"max_position_embeddings": 4096})", "says otherwise"},
        {R"({"linear_attn_config": null})", "linear_attn_config: must be an object"},
        {R"({"linear_attn_config": {"gate_lower_bound": -5.0}})", "linear_attn_config.gate_lower_bound = -5.0"},
        {R"({"linear_attn_config": {"kda_layers": [28]}})", "28 is no layer from 1 to 27"},
        {R"({"linear_attn_config": {"kda_layers": [1, 4]}})", "layer 2 is in none of kda_layers and full_attn_layers"},
        {R"({"linear_attn_config": {"full_attn_layers": [1]}})", "layer 1 is in both of"}}) {
    EXPECT_TRUE(contains(refusal(kimi_linear_48b(), change), says))
        << change << ": " << refusal(kimi_linear_48b(), change);
  }
}

TEST(DeltaRuleTypes, ObstaclesOfKimiLinearHaveNames) {
  const auto obstacle = [](auto&& change) {
    HfModel model = read_json(kimi_linear_48b());
    change(model.config);
    const std::vector<std::string> found = obstacles_to(model.config, model.type);
    return found.size() == 1 ? found.front() : fmt::format("{} obstacles", found.size());
  };
  using C = ModelConfig;
  EXPECT_EQ(obstacle([](C& c) { c.mla.q_lora_rank = 8; }),
            "model.mla.q_lora_rank = 8: kimi_linear has no latent of queries");
  EXPECT_EQ(obstacle([](C& c) { c.moe.num_groups = 4; }),
            "model.moe.num_groups = 4: kimi_linear has no groups of experts");
  EXPECT_EQ(obstacle([](C& c) { c.layers = "kda/moe, mla/moe, mla_nope/moe"; }),
            "model.layers = \"kda/moe, mla/moe, mla_nope/moe\": kimi_linear has layers of one of kda, mla_nope and a "
            "feed-forward part, without windows");
  EXPECT_EQ(obstacle([](C& c) { c.layers = "kda/moe, mla_nope/dense"; }),
            "model.layers = \"kda/moe, mla_nope/dense\": kimi_linear has dense layers before those with experts");
  EXPECT_EQ(obstacle([](C& c) { c.mtp.depth = 1; }),
            "model.mtp.depth = 1: kimi_linear has no further tokens to predict");
}

// By the shapes of its release's tensors.
TEST(DeltaRuleTypes, KimiLinearHasTheElementsOfItsTensors) {
  const int64_t D = 2304, W = 4096, norms = 2 * D;
  const int64_t recurrent = 4 * W * D + 3 * W * 4 + 2 * (128 * D + W * 128) + 32 * D + 32 + W + 128;
  const int64_t attention = 32 * 192 * D + 576 * D + 512 + 32 * 256 * 512 + D * W;
  const int64_t experts = 257 * 3 * 1024 * D + 256 * D + 256, dense = 3 * 9216 * D;
  const int64_t all = 2 * 163840 * D + D + 20 * recurrent + 7 * attention + 26 * experts + dense + 27 * norms;
  EXPECT_EQ(elements(read_json(kimi_linear_48b()).config), all);
  EXPECT_EQ(all, 49'122'681'728);
}

// Rows of queries and of what gates them, head by head; of Gated DeltaNet's projections, group by group.
TEST(DeltaRuleTypes, QwenNextsRowsAreInTheirPlaces) {
  ModelConfig config;
  config.vocab_size = config.dim = 8;
  config.layers = "gated_deltanet/dense, gqa/dense";
  config.num_heads = 2;
  config.zero_centred_norms = true;
  config.rope.layout = RopeLayout::kInterleaved;
  config.gqa = {.num_kv_heads = 1, .head_dim = 6, .qk_norm = true, .rotary_dim = 4, .output_gate = true};
  config.gated_deltanet = {.num_key_heads = 2, .num_value_heads = 4, .key_head_dim = 3, .value_head_dim = 2};
  const std::vector<MappedParameter> parameters = map_parameters(config, ModelType::kQwen3Next);
  const auto rows = [&](const std::string& name) {
    std::vector<int64_t> rows;
    const auto parameter = std::ranges::find(parameters, name, &MappedParameter::name);
    for (const TensorPiece& piece : parameter->pieces) {
      for (int64_t i = 0; i < piece.num_elements; i += 8) rows.push_back((piece.tensor_offset + i) / 8);
    }
    return rows;
  };
  using Rows = std::vector<int64_t>;
  // Of both groups 3 + 3 + 4 + 4 rows, and 2 + 2.
  EXPECT_EQ(rows("layers.0.gated_deltanet.q"), (Rows{0, 1, 2, 14, 15, 16}));
  EXPECT_EQ(rows("layers.0.gated_deltanet.k"), (Rows{3, 4, 5, 17, 18, 19}));
  EXPECT_EQ(rows("layers.0.gated_deltanet.v"), (Rows{6, 7, 8, 9, 20, 21, 22, 23}));
  EXPECT_EQ(rows("layers.0.gated_deltanet.z"), (Rows{10, 11, 12, 13, 24, 25, 26, 27}));
  EXPECT_EQ(rows("layers.0.gated_deltanet.b"), (Rows{0, 1, 4, 5}));
  EXPECT_EQ(rows("layers.0.gated_deltanet.a"), (Rows{2, 3, 6, 7}));
  EXPECT_EQ(rows("layers.1.attention.q"), (Rows{0, 2, 1, 3, 4, 5, 12, 14, 13, 15, 16, 17}));
  EXPECT_EQ(rows("layers.1.attention.gate"), (Rows{6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23}));
}

}  // namespace
}  // namespace nmoe
