// Types beyond DeepSeek's and Qwen3-MoE, by published hyperparameters.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "config/layers.h"
#include "config/load.h"
#include "config/schema.h"
#include "hf/config_json.h"
#include "model/spec/spec.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;
using test::contains;
using test::error_of;

Json common_keys() {
  return Json::parse(R"({"torch_dtype": "bfloat16", "attention_dropout": 0.0, "hidden_act": "silu", "use_cache": true,
    "initializer_range": 0.02, "tie_word_embeddings": false, "transformers_version": "4.51.0"})");
}
Json merged(Json json, const char* more) {
  json.update(Json::parse(more));
  return json;
}

Json llama_3_1_8b() {
  return merged(common_keys(),
                R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false,
    "bos_token_id": 128000, "eos_token_id": 128001, "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "vocab_size": 128256})");
}
Json qwen3_8b() {
  return merged(common_keys(),
                R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "max_window_layers": 36, "num_attention_heads": 32, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
    "sliding_window": null, "use_sliding_window": false, "vocab_size": 151936})");
}
Json mixtral_8x7b() {
  return merged(common_keys(), R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "bos_token_id": 1,
    "eos_token_id": 2, "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02, "sliding_window": null, "vocab_size": 32000})");
}
Json olmoe_1b_7b() {
  return merged(common_keys(),
                R"({"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "attention_bias": false,
    "clip_qkv": null, "eos_token_id": 50279, "hidden_size": 2048, "intermediate_size": 1024,
    "max_position_embeddings": 4096, "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16, "output_router_logits": false,
    "pad_token_id": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.01, "vocab_size": 50304})");
}
Json qwen1_5_moe() {
  return merged(common_keys(),
                R"({"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151643, "hidden_size": 2048, "intermediate_size": 5632,
    "max_position_embeddings": 8192, "max_window_layers": 21, "moe_intermediate_size": 1408, "norm_topk_prob": false,
    "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_key_value_heads": 16, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
    "use_sliding_window": false, "vocab_size": 151936})");
}
Json minimax_m2() {
  Json json = merged(common_keys(), R"({"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2",
    "bos_token_id": 200034, "eos_token_id": 200020, "head_dim": 128, "hidden_size": 3072, "intermediate_size": 1536,
    "max_position_embeddings": 196608, "mlp_intermediate_size": 8192, "mtp_transformer_layers": 1,
    "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 8,
    "num_local_experts": 256, "num_mtp_modules": 3, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06,
    "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid", "shared_intermediate_size": 0,
    "use_mtp": true, "use_qk_norm": true, "use_routing_bias": true, "vocab_size": 200064,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "float8_e4m3fn", "quant_method": "fp8",
                            "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]}})");
  json["attn_type_list"] = std::vector<int>(62, 1);
  return json;
}
Json glm_4_5_air() {
  return merged(common_keys(),
                R"({"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": true,
    "pad_token_id": 151329, "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_size": 4096,
    "partial_rotary_factor": 0.5, "moe_intermediate_size": 1408, "norm_topk_prob": true, "num_attention_heads": 96,
    "n_group": 1, "topk_group": 1, "n_routed_experts": 128, "n_shared_experts": 1, "routed_scaling_factor": 1.0,
    "num_experts_per_tok": 8, "first_k_dense_replace": 1, "intermediate_size": 10944,
    "max_position_embeddings": 131072, "num_hidden_layers": 46, "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
    "use_qk_norm": false, "vocab_size": 151552})");
}
Json dots_llm1() {
  return merged(common_keys(),
                R"({"architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "attention_bias": false,
    "eos_token_id": 151645, "first_k_dense_replace": 1, "hidden_size": 4096, "intermediate_size": 10944,
    "max_position_embeddings": 32768, "max_window_layers": 62, "moe_intermediate_size": 1408, "moe_layer_freq": 1,
    "n_routed_experts": 128, "n_shared_experts": 2, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts_per_tok": 6, "num_hidden_layers": 62, "num_key_value_heads": 32, "n_group": 1, "topk_group": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000000, "routed_scaling_factor": 2.5,
    "sliding_window": null, "scoring_func": "noaux_tc", "use_sliding_window": false, "vocab_size": 152064})");
}
Json ernie_21b() {
  return merged(common_keys(), R"({"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe",
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_size": 2560, "intermediate_size": 12288,
    "max_position_embeddings": 131072, "moe_capacity": [64, 64, 64], "moe_gate": "topk",
    "moe_intermediate_size": 1536, "moe_k": 6, "moe_layer_interval": 1, "moe_layer_start_index": 1,
    "moe_layer_end_index": 27, "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_use_aux_free": true,
    "num_attention_heads": 20, "num_hidden_layers": 28, "num_key_value_heads": 4, "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000.0, "use_bias": false, "vocab_size": 103424,
    "tie_word_embeddings": true})");
}
Json glm_4_7_flash() {
  return merged(common_keys(), R"({"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
    "attention_bias": false, "eos_token_id": [154820, 154827, 154829], "hidden_size": 2048,
    "intermediate_size": 10240, "max_position_embeddings": 202752, "moe_intermediate_size": 1536,
    "topk_method": "noaux_tc", "norm_topk_prob": true, "num_attention_heads": 20, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 1, "routed_scaling_factor": 1.8, "num_experts_per_tok": 4,
    "first_k_dense_replace": 1, "num_hidden_layers": 47, "num_key_value_heads": 20, "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
    "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
    "vocab_size": 154880})");
}

Json gpt_oss_20b() {
  Json json = merged(common_keys(), R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
    "attention_bias": true, "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_size": 2880,
    "initial_context_length": 4096, "intermediate_size": 2880, "max_position_embeddings": 131072,
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
    "num_local_experts": 32, "output_router_logits": false, "pad_token_id": 199999, "rms_norm_eps": 1e-05,
    "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"], "quant_method": "mxfp4"},
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                     "rope_type": "yarn", "truncate": false},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "vocab_size": 201088})");
  for (int i = 0; i < 24; ++i) json["layer_types"].push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  return json;
}

Json nemotron_nano() {
  Json json = merged(common_keys(), R"({"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
    "attention_bias": false, "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2,
    "head_dim": 128, "hidden_dropout": 0.0, "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
    "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32", "max_position_embeddings": 262144, "mlp_bias": false,
    "mlp_hidden_act": "relu2", "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1,
    "n_groups": 8, "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-05, "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_key_value_heads": 2,
    "num_logits_to_keep": 1, "pad_token_id": 0, "partial_rotary_factor": 1.0, "rescale_prenorm_residual": true,
    "residual_in_fp32": false, "rope_theta": 10000, "routed_scaling_factor": 2.5, "sliding_window": null,
    "ssm_state_size": 128, "time_step_floor": 0.0001, "time_step_max": 0.1, "time_step_min": 0.001, "topk_group": 1,
    "use_bias": false, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131072})");
  json.erase("hidden_act");  // mlp_hidden_act
  return json;
}
Json nemotron_super() {
  return merged(nemotron_nano(), R"({"hidden_size": 4096, "intermediate_size": 2688, "mamba_num_heads": 128,
    "hybrid_override_pattern":
      "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    "moe_intermediate_size": 2688, "moe_latent_size": 1024, "moe_shared_expert_intermediate_size": 5376,
    "moe_shared_expert_overlap": false, "mtp_hybrid_override_pattern": "*E", "n_routed_experts": 512,
    "num_experts_per_tok": 22, "num_hidden_layers": 88, "num_nextn_predict_layers": 1, "routed_scaling_factor": 5.0})");
}

HfModel read_json(const Json& json) { return from_config_json(json.dump(), "config.json"); }

// The keys of [model] that have an effect, except those that all these models have.
std::string printed_model(const ModelConfig& model) {
  Config config;
  config.model = model;
  std::ostringstream text;
  for (const Field& field : describe(config)) {
    if (field.used() && field.section().starts_with("model"))
      text << field.key << " = " << to_toml(field.get()) << "\n";
  }
  return text.str();
}

TEST(ConfigJsonTypes, EveryOneRoundTrips) {
  for (const Json& json :
       {llama_3_1_8b(), qwen3_8b(), mixtral_8x7b(), olmoe_1b_7b(), qwen1_5_moe(), minimax_m2(), glm_4_5_air(),
        dots_llm1(), ernie_21b(), glm_4_7_flash(), gpt_oss_20b(), nemotron_nano(), nemotron_super()}) {
    SCOPED_TRACE(json["model_type"]);
    const HfModel model = read_json(json);
    const std::string text = to_config_json(model);
    const HfModel again = from_config_json(text, "config.json");
    EXPECT_EQ(again.type, model.type);
    EXPECT_EQ(printed_model(again.config), printed_model(model.config));
    EXPECT_EQ(again.num_nextn_predict_layers, model.num_nextn_predict_layers);
    EXPECT_EQ(to_config_json(again), text);
    EXPECT_EQ(to_config_json(model, json.dump()), json.dump(2) + "\n");  // what it came from stays as it is
    EXPECT_EQ(obstacles_to(model.config, model.type), std::vector<std::string>());
    const ModelType nearest = nearest_type(model.config);
    EXPECT_EQ(nearest, model.type == ModelType::kGlm4MoeLite ? ModelType::kDeepseekV3 : model.type);
  }
}

TEST(ConfigJsonTypes, ReadsLlama) {
  const ModelConfig config = read_json(llama_3_1_8b()).config;
  EXPECT_EQ(config.moe.num_experts, 0);
  EXPECT_EQ(config.dense_dim, 14336);
  EXPECT_EQ(config.gqa.head_dim, 128);
  EXPECT_EQ(config.gqa.num_kv_heads, 8);
  EXPECT_FALSE(config.gqa.qk_norm);
  EXPECT_EQ(config.gqa.bias, AttentionBias::kNone);
  EXPECT_EQ(config.rope.layout, RopeLayout::kHalfSplit);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(config.rope.factor, 8.0);
  EXPECT_EQ(config.rope.original_max_positions, 8192);
  EXPECT_EQ(config.yarn.factor, 1.0);
  EXPECT_EQ(read_json(merged(llama_3_1_8b(), R"({"attention_bias": true})")).config.gqa.bias, AttentionBias::kAll);
  const Json old = merged(llama_3_1_8b(), R"({"rope_scaling": {"type": "linear", "factor": 2.0}})");
  EXPECT_EQ(read_json(old).config.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(read_json(old).config.rope.factor, 2.0);
}

TEST(ConfigJsonTypes, ReadsAttentionOfEachType) {
  const ModelConfig glm = read_json(glm_4_5_air()).config, minimax = read_json(minimax_m2()).config,
                    olmoe = read_json(olmoe_1b_7b()).config, dots = read_json(dots_llm1()).config,
                    qwen2 = read_json(qwen1_5_moe()).config, ernie = read_json(ernie_21b()).config,
                    qwen3 = read_json(qwen3_8b()).config;
  EXPECT_EQ(glm.gqa.bias, AttentionBias::kQkv);
  EXPECT_EQ(glm.gqa.rotary_dim, 64);
  EXPECT_FALSE(glm.gqa.qk_norm);
  EXPECT_EQ(minimax.gqa.rotary_dim, 64);
  EXPECT_TRUE(minimax.gqa.qk_norm);
  EXPECT_EQ(minimax.gqa.qk_norm_over, QkNormOver::kAllHeads);
  EXPECT_EQ(olmoe.gqa.qk_norm_over, QkNormOver::kAllHeads);
  EXPECT_TRUE(dots.gqa.qk_norm);
  EXPECT_EQ(dots.gqa.qk_norm_over, QkNormOver::kHead);
  EXPECT_EQ(qwen2.gqa.bias, AttentionBias::kQkv);
  EXPECT_EQ(ernie.rope.layout, RopeLayout::kInterleaved);
  EXPECT_TRUE(ernie.tied_head);
  EXPECT_TRUE(qwen3.gqa.qk_norm);
}

TEST(ConfigJsonTypes, ReadsRoutersOfEachType) {
  const MoeConfig mixtral = read_json(mixtral_8x7b()).config.moe, olmoe = read_json(olmoe_1b_7b()).config.moe,
                  qwen2 = read_json(qwen1_5_moe()).config.moe, minimax = read_json(minimax_m2()).config.moe,
                  glm = read_json(glm_4_5_air()).config.moe, dots = read_json(dots_llm1()).config.moe,
                  ernie = read_json(ernie_21b()).config.moe;
  EXPECT_EQ(mixtral.score, ScoreFunction::kSoftmax);
  EXPECT_TRUE(mixtral.normalise_weights);
  EXPECT_EQ(mixtral.expert_dim, 14336);
  EXPECT_EQ(mixtral.bias_rate, 0.0);
  EXPECT_FALSE(olmoe.normalise_weights);
  EXPECT_EQ(olmoe.num_shared_experts, 0);
  EXPECT_EQ(qwen2.shared_dim, 5632);
  EXPECT_TRUE(qwen2.shared_gate);
  EXPECT_EQ(minimax.score, ScoreFunction::kSigmoid);
  EXPECT_TRUE(minimax.normalise_weights);
  EXPECT_GT(minimax.bias_rate, 0.0);
  EXPECT_EQ(glm.num_shared_experts, 1);
  EXPECT_EQ(dots.routed_scale, 2.5);
  EXPECT_EQ(dots.num_shared_experts, 2);
  EXPECT_EQ(ernie.score, ScoreFunction::kSoftmax);
  EXPECT_GT(ernie.bias_rate, 0.0);
  EXPECT_EQ(read_json(ernie_21b()).config.num_dense_layers, 1);
}

// transformers 5 keeps the share in rope_parameters, and there ignores MiniMax's rotary_dim.
TEST(ConfigJsonTypes, PartsOfHeadsRotateAsTransformersRotatesThem) {
  Json glm = glm_4_5_air();
  glm.erase("partial_rotary_factor");
  EXPECT_EQ(read_json(glm).config.gqa.rotary_dim, 64) << "the type's own default";
  glm.erase("rope_theta");
  glm.erase("rope_scaling");
  glm["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}};
  EXPECT_EQ(read_json(glm).config.gqa.rotary_dim, 32);
  glm["partial_rotary_factor"] = 0.5;
  EXPECT_TRUE(contains(error_of([&] { read_json(glm); }).what(), "partial_rotary_factor = 0.5"));
  glm["transformers_version"] = "5.17.0";  // which writes its default beside what counts
  EXPECT_EQ(read_json(glm).config.gqa.rotary_dim, 32);

  Json minimax = minimax_m2();
  minimax.erase("rope_theta");
  minimax["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e6}};
  EXPECT_TRUE(contains(error_of([&] { read_json(minimax); }).what(), "have 128 of a head's values rotate"));
  minimax["transformers_version"] = "5.17.0";  // which ignored rotary_dim and kept it
  EXPECT_EQ(read_json(minimax).config.gqa.rotated(), 128);
  EXPECT_EQ(to_config_json(read_json(minimax), minimax.dump()), minimax.dump(2) + "\n");
  minimax["rope_parameters"]["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(read_json(minimax).config.gqa.rotary_dim, 64);
  EXPECT_TRUE(contains(error_of([] { read_json(merged(minimax_m2(), R"({"partial_rotary_factor": 0.25})")); }).what(),
                       "rotary_dim = 64"));
}

// Another theta: what rotates is written anew, whole.
TEST(ConfigJsonTypes, ABaseWithOtherAnglesKeepsWhatRotates) {
  Json base = glm_4_5_air();
  base["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}};
  for (const char* key : {"rope_theta", "rope_scaling", "partial_rotary_factor"}) base.erase(key);
  HfModel model = read_json(base);
  model.config.rope.theta = 5e5;
  const std::string text = to_config_json(model, base.dump());
  EXPECT_EQ(read_json(Json::parse(text)).config.gqa.rotary_dim, 64);
  EXPECT_EQ(Json::parse(text)["rope_theta"], 5e5);
  EXPECT_FALSE(Json::parse(text).contains("rope_parameters"));
}

Json qwen3_30b_a3b() {
  return merged(common_keys(), R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "attention_bias": false, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
    "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
    "sliding_window": null, "use_sliding_window": false, "vocab_size": 151936})");
}

// What configs/models says of the models is what they say of themselves; how they are balanced is its own.
TEST(ConfigJsonTypes, ConfigurationsAtPublishedSizesAreThoseModels) {
  for (const auto& [file, json] : {std::pair("mixtral-8x7b", mixtral_8x7b()),
                                   {"olmoe-1b-7b", olmoe_1b_7b()},
                                   {"glm-4.5-air", glm_4_5_air()},
                                   {"qwen3-30b-a3b", qwen3_30b_a3b()},
                                   {"llama-3.1-8b", llama_3_1_8b()},
                                   {"gpt-oss-20b", gpt_oss_20b()},
                                   {"nemotron-3-nano-30b-a3b", nemotron_nano()},
                                   {"nemotron-3-super-120b-a12b", nemotron_super()}}) {
    const ModelConfig published = read_json(json).config;
    ModelConfig own = load_config(fs::path(NMOE_SOURCE_DIR) / "configs/models" / (std::string(file) + ".toml")).model;
    own.moe.balance_loss = published.moe.balance_loss;
    own.moe.z_loss = published.moe.z_loss;
    own.moe.bias_rate = published.moe.bias_rate;
    own.init = published.init;
    own.mtp = published.mtp;
    EXPECT_EQ(layer_specs(own), layer_specs(published)) << file;
    own.layers = published.layers;
    EXPECT_EQ(printed_model(own), printed_model(published)) << file;
  }
}

int64_t elements(const ModelConfig& config) {
  int64_t sum = 0;
  for (const WeightSpec& weight : describe_model(config).weights) sum += weight.shape.num_elements();
  return sum;
}

// Its release has 123,611,033,088 elements (NVIDIA's card), selection biases and the module for further tokens
// included.
TEST(ConfigJsonTypes, NemotronSuperHasTheElementsOfItsRelease) {
  EXPECT_EQ(elements(load_config(fs::path(NMOE_SOURCE_DIR) / "configs/models/nemotron-3-super-120b-a12b.toml").model),
            123'611'033'088);
  EXPECT_EQ(elements(read_json(nemotron_super()).config), 120'668'707'840);
}

// By the shapes of transformers' tensors, without the module for further tokens.
TEST(ConfigJsonTypes, QwenNextHasTheElementsOfItsTensors) {
  const int64_t D = 2048, experts = 513 * 3 * 512 * D + 512 * D + D, norms = 2 * D;
  const int64_t recurrent = 12288 * D + 64 * D + 8192 * 4 + 32 + 32 + 128 + D * 4096;
  const int64_t attention = 8192 * D + 2 * 512 * D + D * 4096 + 2 * 256;
  const int64_t all = 2 * 151936 * D + D + 48 * (experts + norms) + 36 * recurrent + 12 * attention;
  EXPECT_EQ(all, 79'674'391'296);
  const int64_t selection_biases = 48 * 512;  // which the type has not, and this model does not move
  EXPECT_EQ(elements(load_config(fs::path(NMOE_SOURCE_DIR) / "configs/models/qwen3-next-80b-a3b.toml").model),
            all + selection_biases);
}

// The keys of earlier and later versions, and what is refused.
TEST(ConfigJsonTypes, NemotronInOtherWords) {
  const auto printed = [](const Json& json) { return printed_model(read_json(json).config); };
  const auto refusal = [](const char* change) {
    return std::string(error_of([&] { read_json(merged(nemotron_nano(), change)); }).what());
  };
  Json later = nemotron_nano();
  for (const char* key : {"hybrid_override_pattern", "num_hidden_layers", "norm_eps", "conv_kernel"}) later.erase(key);
  for (const char letter : nemotron_nano()["hybrid_override_pattern"].get<std::string>()) {
    later["layers_block_type"].push_back(letter == 'M' ? "linear_attention" : letter == 'E' ? "moe" : "full_attention");
  }
  later["mamba_d_conv"] = 4;
  later["attention_head_dim"] = later["head_dim"];
  later.erase("head_dim");
  later["time_step_limit"] = Json::parse(R"([0.0, {"__float__": "Infinity"}])");
  EXPECT_EQ(printed(later), printed(nemotron_nano()));
  later["layers_block_type"][0] = "mamba";  // as transformers called it at first
  EXPECT_EQ(printed(later), printed(nemotron_nano()));

  // Python's infinity, which is no JSON, and stays as it is.
  std::string bare = nemotron_nano().dump(2) + "\n";
  bare.replace(bare.find("\"use_bias\""), 0, "\"time_step_limit\": [\n    0.0,\n    Infinity\n  ],\n  ");
  const HfModel model = from_config_json(bare, "config.json");
  EXPECT_EQ(printed_model(model.config), printed(nemotron_nano()));
  EXPECT_EQ(to_config_json(model, bare), bare);

  EXPECT_TRUE(contains(refusal(R"({"time_step_limit": [0.001, 0.1]})"), "time_step_limit"));
  EXPECT_TRUE(contains(refusal(R"({"num_hidden_layers": 51})"), "the pattern has 52"));
  EXPECT_TRUE(contains(refusal(R"({"hybrid_override_pattern": "MX"})"), "'X' is none of the layers"));
  EXPECT_TRUE(contains(refusal(R"({"layers_block_type": ["mamba"]})"), "says otherwise"));
  EXPECT_TRUE(contains(refusal(R"({"norm_eps": 1e-6})"), "says otherwise"));
  for (const char* change :
       {R"({"use_conv_bias": false})", R"({"use_bias": true})", R"({"mamba_proj_bias": true})", R"({"mlp_bias": true})",
        R"({"mlp_hidden_act": "silu"})", R"({"n_shared_experts": 2})", R"({"sliding_window": 512})",
        R"({"residual_in_fp32": true})", R"({"mamba_hidden_act": "gelu"})", R"({"time_step_limits": 1})"}) {
    const std::string key = Json::parse(change).begin().key();
    EXPECT_TRUE(contains(refusal(change), key)) << change;
  }
}

// What transformers takes where a file does not say.
TEST(ConfigJsonTypes, DefaultsAreThoseOfTheType) {
  const auto without = [](Json json, std::initializer_list<const char*> keys) {
    for (const char* key : keys) json.erase(key);
    return read_json(json).config;
  };
  Json narrow = qwen3_8b();
  narrow["hidden_size"] = 2560;
  EXPECT_EQ(without(narrow, {"head_dim"}).gqa.head_dim, 128);
  EXPECT_EQ(without(minimax_m2(), {"head_dim", "rotary_dim"}).gqa.head_dim, 128);
  EXPECT_EQ(without(llama_3_1_8b(), {"num_key_value_heads"}).gqa.num_kv_heads, 32);
  EXPECT_EQ(without(llama_3_1_8b(), {"rope_theta", "rope_scaling"}).rope.theta, 10000.0) << "as Llama 2's files";
  EXPECT_TRUE(without(ernie_21b(), {"tie_word_embeddings"}).tied_head);
  EXPECT_FALSE(without(glm_4_5_air(), {"tie_word_embeddings"}).tied_head);
  EXPECT_TRUE(without(glm_4_5_air(), {"norm_topk_prob", "n_group", "topk_group"}).moe.normalise_weights);
  EXPECT_FALSE(without(dots_llm1(), {"norm_topk_prob"}).moe.normalise_weights);
  EXPECT_EQ(without(dots_llm1(), {"routed_scaling_factor"}).moe.routed_scale, 1.0);
  EXPECT_EQ(without(qwen1_5_moe(), {"qkv_bias"}).gqa.bias, AttentionBias::kQkv);
  EXPECT_FALSE(without(olmoe_1b_7b(), {"norm_topk_prob"}).moe.normalise_weights);
}

// What transformers 5 wrote of every fixture, in the words of earlier versions.
TEST(ConfigJsonTypes, OlderFilesSayTheSame) {
  int num_seen = 0;
  for (const auto& folder : fs::directory_iterator(fs::path(NMOE_SOURCE_DIR) / "tests/fixtures/hf")) {
    const Json now = Json::parse(read_file(folder.path() / "config.json"));
    Json old = now, rope = now.value("rope_parameters", Json::object());
    // Its rotary_dim, which transformers 5 ignored, is what older versions go by.
    if (rope.empty() || folder.path().filename() == "minimax_whole") continue;
    SCOPED_TRACE(folder.path().filename());
    const auto rename = [&old](Json& from, const char* key, const char* name) {
      if (!from.contains(key)) return;
      old[name] = from[key];
      from.erase(key);
    };
    for (const char* key : {"rope_parameters", "transformers_version"}) old.erase(key);
    rename(old, "dtype", "torch_dtype");
    for (const char* key : {"rope_theta", "partial_rotary_factor"}) rename(rope, key, key);
    rename(rope, "rope_type", "type");
    const Json type = old["type"];
    old.erase("type");
    rope["type"] = type;
    old["rope_scaling"] = type == "default" ? Json() : rope;
    EXPECT_EQ(printed_model(read_json(old).config), printed_model(read_json(now).config));
    EXPECT_EQ(read_json(old).dtype, read_json(now).dtype);
    ++num_seen;
  }
  EXPECT_GT(num_seen, 30);
}

// What scales YaRN's cos and sin may be said, if it is what follows from the rest.
TEST(ConfigJsonTypes, YarnsFactorOfAttentionIsTheDerivedOne) {
  Json json = gpt_oss_20b();
  const std::string plain = printed_model(read_json(json).config);
  json["rope_scaling"]["attention_factor"] = 1.3465735902799727;  // 0.1 ln 32 + 1
  EXPECT_EQ(printed_model(read_json(json).config), plain);
  json["rope_scaling"]["attention_factor"] = 1.34;
  EXPECT_TRUE(contains(error_of([&] { read_json(json); }).what(), "attention_factor = 1.34: nmoe derives 1.3465"));
}

// What a type cannot say, key by key.
TEST(ConfigJsonTypes, ObstaclesOfTypesHaveNames) {
  const auto obstacles = [](const Json& json, auto&& change) {
    HfModel model = read_json(json);
    change(model.config);
    const std::vector<std::string> found = obstacles_to(model.config, model.type);
    return found.size() == 1 ? found.front() : fmt::format("{} obstacles", found.size());
  };
  using C = ModelConfig;
  EXPECT_EQ(obstacles(llama_3_1_8b(), [](C& c) { c.dim = 4100; }),
            "model.dim = 4100: llama has a multiple of the number of heads");
  EXPECT_EQ(obstacles(llama_3_1_8b(), [](C& c) { c.gqa.rotary_dim = 64; }),
            "model.gqa.rotary_dim = 64: llama has whole heads that rotate");
  EXPECT_EQ(obstacles(qwen3_8b(), [](C& c) { c.gqa.bias = AttentionBias::kQkv; }),
            "model.gqa.bias = \"qkv\": qwen3 has biases of all four, or none");
  EXPECT_EQ(obstacles(qwen3_8b(), [](C& c) { c.gqa.qk_norm_over = QkNormOver::kAllHeads; }),
            "model.gqa.qk_norm_over = \"all_heads\": qwen3 has a norm of each head");
  EXPECT_EQ(obstacles(mixtral_8x7b(), [](C& c) { c.gqa.bias = AttentionBias::kAll; }),
            "model.gqa.bias = \"all\": mixtral has no biases");
  EXPECT_EQ(obstacles(olmoe_1b_7b(), [](C& c) { c.gqa.head_dim = 64; }),
            "model.gqa.head_dim = 64: olmoe has heads that are as wide as the model together");
  EXPECT_EQ(obstacles(qwen1_5_moe(), [](C& c) { c.moe.shared_gate = false; }),
            "model.moe.shared_gate = false: qwen2_moe has a gate of its shared experts");
  EXPECT_EQ(obstacles(glm_4_5_air(), [](C& c) { c.moe.shared_dim = 1000; }),
            "model.moe.shared_dim = 1000: glm4_moe has shared experts as wide as others");
  EXPECT_EQ(obstacles(dots_llm1(), [](C& c) { c.moe.num_shared_experts = 0; }),
            "model.moe.num_shared_experts = 0: dots1 has 1 or more");
  EXPECT_EQ(obstacles(gpt_oss_20b(), [](C& c) { c.gqa.sinks = false; }), "model.gqa.sinks = false: gpt_oss has sinks");
  EXPECT_EQ(obstacles(gpt_oss_20b(), [](C& c) { c.moe.biases = false; }),
            "model.moe.biases = false: gpt_oss has biases of routers and experts");
  EXPECT_EQ(obstacles(gpt_oss_20b(), [](C& c) { c.activation = Activation::kSwiGlu; }),
            "model.activation = \"swiglu\": gpt_oss has clamped_swiglu");
  EXPECT_EQ(obstacles(mixtral_8x7b(), [](C& c) { c.gqa.sinks = true; }),
            "model.gqa.sinks = true: mixtral has no sinks");
  EXPECT_EQ(obstacles(qwen3_30b_a3b(), [](C& c) { c.moe.biases = true; }),
            "model.moe.biases = true: qwen3_moe has no biases of routers and experts");
  EXPECT_EQ(obstacles(glm_4_7_flash(), [](C& c) { c.rope.scaling = RopeScaling::kLinear; }),
            "model.rope.scaling = \"linear\": glm4_moe_lite has YaRN or none");
}

// Layers without experts, and windows, in any place that a type's keys can say; written back, they are the same.
TEST(ConfigJsonTypes, LayersMayDiffer) {
  const auto pattern = [](Json json, const char* change) {
    json.merge_patch(Json::parse(change));
    const HfModel model = read_json(json);
    EXPECT_EQ(to_config_json(model, json.dump()), json.dump(2) + "\n");
    const std::string text = to_config_json(model);
    const HfModel again = from_config_json(text, "config.json");
    EXPECT_EQ(printed_model(again.config), printed_model(model.config));
    EXPECT_EQ(obstacles_to(model.config, model.type), std::vector<std::string>());
    EXPECT_EQ(again.config.layers, model.config.layers);
    return model.config.layers;
  };
  EXPECT_EQ(pattern(qwen3_30b_a3b(), R"({"num_hidden_layers": 6, "decoder_sparse_step": 2})"),
            "3 x (gqa/dense, gqa/moe)");
  EXPECT_EQ(pattern(qwen3_30b_a3b(), R"({"num_hidden_layers": 5, "mlp_only_layers": [3, 1]})"),
            "gqa/moe, gqa/dense, gqa/moe, gqa/dense, gqa/moe");
  EXPECT_EQ(pattern(qwen3_30b_a3b(), R"({"num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [1]})"),
            "3 x gqa/dense, gqa/moe, gqa/dense");
  EXPECT_EQ(pattern(qwen3_30b_a3b(), R"({"mlp_only_layers": [1, 0]})"), "");
  // Qwen2-MoE's windows are those of every other layer, up to max_window_layers.
  EXPECT_EQ(pattern(qwen1_5_moe(), R"({"num_hidden_layers": 6, "use_sliding_window": true, "max_window_layers": 4})"),
            "gqa:32768/moe, gqa/moe, gqa:32768/moe, 3 x gqa/moe");
  EXPECT_EQ(pattern(qwen1_5_moe(), R"({"num_hidden_layers": 4, "use_sliding_window": true, "sliding_window": 64,
                                       "mlp_only_layers": [3],
                                       "layer_types": ["full_attention", "full_attention", "sliding_attention",
                                                       "full_attention"]})"),
            "2 x gqa/moe, gqa:64/moe, gqa/dense");
  EXPECT_EQ(pattern(qwen3_8b(), R"({"num_hidden_layers": 4, "use_sliding_window": true, "sliding_window": 64,
                                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                                                    "full_attention"]})"),
            "2 x (gqa:64/dense, gqa/dense)");
  EXPECT_EQ(pattern(dots_llm1(), R"({"num_hidden_layers": 3, "sliding_window": 64,
                                     "layer_types": ["full_attention", "sliding_attention", "full_attention"]})"),
            "gqa/dense, gqa:64/moe, gqa/moe");
  EXPECT_EQ(pattern(qwen3_8b(), R"({"num_hidden_layers": 4, "use_sliding_window": true, "sliding_window": 64,
                                    "max_window_layers": 3})"),
            "3 x gqa/dense, gqa:64/dense");
  EXPECT_EQ(pattern(dots_llm1(), R"({"sliding_window": 4096, "max_window_layers": 60})"),
            "gqa/dense, 59 x gqa/moe, 2 x gqa:4096/moe");
  EXPECT_EQ(pattern(mixtral_8x7b(), R"({"sliding_window": 4096})"), "32 x gqa:4096/moe");
  EXPECT_EQ(pattern(gpt_oss_20b(), R"({"layer_types": null, "sliding_window": null, "num_hidden_layers": 3})"),
            "gqa:128/moe, gqa/moe, gqa:128/moe");
  EXPECT_EQ(pattern(gpt_oss_20b(), R"({"num_hidden_layers": 2, "layer_types": ["full_attention", "full_attention"]})"),
            "");
  EXPECT_EQ(pattern(qwen3_30b_a3b(), R"({"use_sliding_window": true, "sliding_window": 64})"), "48 x gqa:64/moe");
  EXPECT_EQ(pattern(ernie_21b(), R"({"num_hidden_layers": 8, "moe_layer_interval": 2, "moe_layer_end_index": 5})"),
            "gqa/dense, gqa/moe, gqa/dense, gqa/moe, gqa/dense, gqa/moe, 2 x gqa/dense");
  EXPECT_EQ(pattern(ernie_21b(), R"({"moe_layer_end_index": 20})"), "gqa/dense, 20 x gqa/moe, 7 x gqa/dense");
  EXPECT_EQ(pattern(glm_4_7_flash(), R"({"num_hidden_layers": 3, "mlp_layer_types": ["sparse", "dense", "sparse"]})"),
            "mla/moe, mla/dense, mla/moe");
}

// ERNIE's keys say every n-th layer from one to another, and mlp_only_layers any.
TEST(ConfigJsonTypes, LayersThatATypeCannotHave) {
  const auto obstacle = [](const Json& json, const char* layers) {
    ModelConfig config = read_json(json).config;
    config.layers = layers;
    return obstacles_to(config, read_json(json).type);
  };
  EXPECT_EQ(obstacle(ernie_21b(), "gqa/moe, gqa/dense, 2 x gqa/moe").size(), 1u);
  EXPECT_EQ(obstacle(ernie_21b(), "gqa/dense, 2 x gqa/moe").size(), 0u);
  EXPECT_EQ(obstacle(qwen3_30b_a3b(), "gqa/moe, gqa/dense, 2 x gqa/moe").size(), 0u);
  EXPECT_EQ(obstacle(qwen3_30b_a3b(), "gqa:8/moe, gqa/moe"),
            (std::vector<std::string>{
                "model.layers = \"gqa:8/moe, gqa/moe\": qwen3_moe has one window of all layers, or none"}));
  EXPECT_EQ(obstacle(qwen3_30b_a3b(), "2 x gqa:8/moe").size(), 0u);
  EXPECT_EQ(obstacle(glm_4_5_air(), "gqa:8/dense, gqa:8/moe"),
            (std::vector<std::string>{"model.layers = \"gqa:8/dense, gqa:8/moe\": glm4_moe has no windows"}));
  EXPECT_EQ(obstacle(qwen3_8b(), "gqa:8/dense, gqa:4/dense, gqa/dense").size(), 1u);
  EXPECT_EQ(obstacle(qwen3_8b(), "gqa:8/dense, gqa:4/dense").size(), 1u);
  EXPECT_EQ(obstacle(glm_4_5_air(), "gqa/moe, gqa/dense, gqa/moe").size(), 1u);
}

struct TypeRefusal {
  Json (*model)();
  const char* change;
  const char* says;
};
class ConfigJsonTypesRefuses : public testing::TestWithParam<TypeRefusal> {};

TEST_P(ConfigJsonTypesRefuses, WithTheKey) {
  Json json = GetParam().model();
  json.merge_patch(Json::parse(GetParam().change));
  const Error error = error_of([&] { read_json(json); });
  EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
  EXPECT_TRUE(contains(error.what(), GetParam().says));
  EXPECT_NE(error.remedy(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Types, ConfigJsonTypesRefuses,
    testing::Values(
        TypeRefusal{llama_3_1_8b, R"({"mlp_bias": true})", "mlp_bias = true: MLPs have no biases"},
        TypeRefusal{llama_3_1_8b, R"({"rope_scaling": {"rope_type": "dynamic"}})",
                    "rope_scaling.rope_type = \"dynamic\""},
        TypeRefusal{llama_3_1_8b, R"({"rope_scaling": {"rope_type": "longrope"}})",
                    "rope_scaling.rope_type = \"longrope\""},
        TypeRefusal{llama_3_1_8b, R"({"rope_scaling": {"high_freq_factor": 1.0}})", "high_freq_factor = 1"},
        TypeRefusal{llama_3_1_8b, R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor = 0.5"},
        TypeRefusal{qwen3_8b, R"({"use_sliding_window": true, "sliding_window": 0, "max_window_layers": 30})",
                    "sliding_window = 0: layers have windows"},
        TypeRefusal{qwen3_8b, R"({"layer_types": ["sliding_attention"]})", "must be a list of 36 types"},
        TypeRefusal{mixtral_8x7b, R"({"sliding_window": 0})", "sliding_window = 0"},
        TypeRefusal{mixtral_8x7b, R"({"router_jitter_noise": 0.1})", "router_jitter_noise = 0.1"},
        TypeRefusal{olmoe_1b_7b, R"({"clip_qkv": 8.0})", "clip_qkv = 8.0"},
        TypeRefusal{olmoe_1b_7b, R"({"head_dim": 64})", "head_dim = 64"},
        TypeRefusal{qwen1_5_moe, R"({"decoder_sparse_step": 0})", "decoder_sparse_step = 0"},
        TypeRefusal{qwen1_5_moe, R"({"shared_expert_intermediate_size": null})",
                    "shared_expert_intermediate_size: is missing"},
        TypeRefusal{minimax_m2, R"({"attn_type_list": [0, 1]})", "attn_type_list"},
        TypeRefusal{minimax_m2, R"({"use_qk_norm": false})", "use_qk_norm = false"},
        TypeRefusal{minimax_m2, R"({"shared_intermediate_size": 512})", "shared_intermediate_size = 512"},
        TypeRefusal{glm_4_5_air, R"({"head_dim": 10, "partial_rotary_factor": 0.5})", "5 of a head's 10 values"},
        TypeRefusal{glm_4_5_air, R"({"scoring_func": "softmax"})", "scoring_func = \"softmax\""},
        TypeRefusal{dots_llm1, R"({"layer_types": ["sliding_attention"]})", "layer_types"},
        TypeRefusal{ernie_21b, R"({"num_key_value_heads": null})", "num_key_value_heads: is missing"},
        TypeRefusal{ernie_21b, R"({"use_bias": true})", "use_bias = true"},
        TypeRefusal{ernie_21b, R"({"moe_layer_interval": 0})", "moe_layer_interval = 0"},
        TypeRefusal{ernie_21b, R"({"compression_ratio": 2.0})", "compression_ratio = 2"},
        TypeRefusal{gpt_oss_20b, R"({"swiglu_limit": 5.0})", "swiglu_limit = 5.0: transformers' experts clamp at 7"},
        TypeRefusal{gpt_oss_20b, R"({"experts_per_token": 2})", "experts_per_token"},
        TypeRefusal{gpt_oss_20b, R"({"quantization_config": {"quant_method": "awq"}})", "quant_method = \"awq\""},
        TypeRefusal{mixtral_8x7b, R"({"quantization_config": {"quant_method": "mxfp4"}})", "quant_method = \"mxfp4\""},
        TypeRefusal{glm_4_7_flash, R"({"mlp_layer_types": ["sparse"]})", "mlp_layer_types"},
        TypeRefusal{glm_4_7_flash, R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor = 0.5"}));

// Whoever mends one thing learns of no other afterwards.
TEST(ConfigJsonTypes, AllThatIsMissingIsNamedAtOnce) {
  const Json json = merged(mixtral_8x7b(), R"({"attention_bias": true, "hidden_act": "gelu", "router_jitter_noise": 0.1,
    "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "attn_logit_softcapping": 50.0, "index_topk": 2048})");
  const Error error = error_of([&] { read_json(json); });
  for (const char* says :
       {"'config.json': 7 things", "hidden_act = \"gelu\": nmoe has no counterpart",
        "router_jitter_noise = 0.1: training adds no noise", "attention_bias = true: nmoe has no counterpart",
        "rope_scaling.rope_type = \"dynamic\"", "rope_scaling.factor = 2.0: nmoe does not know this key",
        "attn_logit_softcapping = 50.0: nmoe does not know this key, and has no soft-capped attention scores",
        "index_topk = 2048: nmoe does not know this key, and has no indexer of sparse attention"}) {
    EXPECT_TRUE(contains(error.what(), says));
  }
  EXPECT_TRUE(contains(error.remedy(), "docs/huggingface.md"));
}

TEST(ConfigJsonTypes, OfAnotherTypeItsFeaturesAreNamed) {
  const Error next = error_of([] {
    from_config_json(R"({"model_type": "qwen3_next", "linear_num_key_heads": 16, "partial_rotary_factor": 0.25})", "x");
  });
  EXPECT_TRUE(contains(next.what(), "model_type = \"qwen3_next\": nmoe reads deepseek_v2, deepseek_v3, "));
  EXPECT_TRUE(contains(next.what(), "layers of Gated DeltaNet, gates on attention's output"));
  EXPECT_TRUE(contains(next.what(), "linear_num_key_heads = 16: nmoe has no layers of Gated DeltaNet"));
  const Error unknown = error_of([] { from_config_json(R"({"model_type": "new", "vision_config": {}})", "x"); });
  EXPECT_TRUE(contains(unknown.what(), "vision_config = {}: nmoe has no images"));
}

}  // namespace
}  // namespace nmoe
