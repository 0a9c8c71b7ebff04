#include "hf/config_json.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/files.h"
#include "config/layers.h"
#include "config/load.h"
#include "config/schema.h"
#include "hf/fixtures.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;
using test::contains;
using test::error_of;

// Published hyperparameters of released models.
Json deepseek_v3() {
  return Json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
    "attention_bias": false, "attention_dropout": 0.0, "auto_map": {"AutoConfig": "a.B"}, "aux_loss_alpha": 0.001,
    "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
    "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "transformers_version": "4.33.1",
    "use_cache": true, "v_head_dim": 128, "vocab_size": 129280})");
}

Json deepseek_v2_lite() {
  return Json::parse(R"({
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "torch_dtype": "bfloat16",
    "attention_bias": false, "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "bos_token_id": 100000,
    "eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": null, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy", "use_cache": true, "v_head_dim": 128,
    "vocab_size": 102400})");
}

Json moonlight() {
  Json json = deepseek_v3();
  json.erase("quantization_config");
  json.update(Json::parse(R"({
    "bos_token_id": 163584, "eos_token_id": 163585, "first_k_dense_replace": 1, "hidden_size": 2048,
    "intermediate_size": 11264, "max_position_embeddings": 8192, "moe_intermediate_size": 1408, "n_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6,
    "num_hidden_layers": 27, "num_key_value_heads": 16, "num_nextn_predict_layers": 0, "q_lora_rank": null,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 50000.0, "routed_scaling_factor": 2.446,
    "topk_group": 1, "vocab_size": 163840})"));
  return json;
}

Json kimi_k2() {
  Json json = deepseek_v3();
  json.update(Json::parse(R"({
    "model_type": "kimi_k2", "bos_token_id": 163584, "eos_token_id": 163586, "first_k_dense_replace": 1,
    "max_position_embeddings": 131072, "n_group": 1, "n_routed_experts": 384, "num_attention_heads": 64,
    "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "rope_theta": 50000.0,
    "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "routed_scaling_factor": 2.827, "topk_group": 1, "vocab_size": 163840})"));
  return json;
}

Json qwen3_moe() {
  return Json::parse(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
    "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
    "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": null, "tie_word_embeddings": false, "transformers_version": "4.51.0", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 151936})");
}

HfModel read(const Json& json) { return from_config_json(json.dump(), "config.json"); }

// All that ModelConfig says, as text. Keys without effect are left out.
std::string printed(const ModelConfig& model) {
  Config config;
  config.model = model;
  std::ostringstream text;
  for (const Field& field : describe(config)) {
    if (field.used() && field.section().starts_with("model"))
      text << field.key << " = " << to_toml(field.get()) << "\n";
  }
  return text.str();
}

void expect_same(const HfModel& a, const HfModel& b) {
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(printed(a.config), printed(b.config));
  EXPECT_EQ(a.num_nextn_predict_layers, b.num_nextn_predict_layers);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.format, b.format);
  EXPECT_EQ(a.scales, b.scales);
  EXPECT_EQ(a.bos_id, b.bos_id);
  EXPECT_EQ(a.eos_ids, b.eos_ids);
}

TEST(ConfigJson, ReadsDeepseekV3) {
  const HfModel model = read(deepseek_v3());
  const ModelConfig& config = model.config;
  EXPECT_EQ(model.type, ModelType::kDeepseekV3);
  EXPECT_EQ(model.num_nextn_predict_layers, 1);
  EXPECT_EQ(model.dtype, "bfloat16");
  EXPECT_EQ(model.format, HfFormat::kFp8);
  EXPECT_EQ(model.bos_id, 0);
  EXPECT_EQ(model.eos_ids, std::vector<int64_t>{1});
  EXPECT_EQ(config.vocab_size, 129280);
  EXPECT_EQ(config.dim, 7168);
  EXPECT_EQ(config.num_layers, 61);
  EXPECT_EQ(config.num_heads, 128);
  EXPECT_EQ(config.num_dense_layers, 3);
  EXPECT_EQ(config.dense_dim, 18432);
  EXPECT_EQ(config.activation, Activation::kSwiGlu);
  EXPECT_EQ(config.attention, PartKind::kMla);
  EXPECT_EQ(config.max_positions, 163840);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_FALSE(config.tied_head);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rope.layout, RopeLayout::kInterleaved);
  EXPECT_EQ(config.yarn.factor, 40.0);
  EXPECT_EQ(config.yarn.original_max_positions, 4096);
  EXPECT_EQ(config.yarn.beta_fast, 32.0);
  EXPECT_EQ(config.yarn.beta_slow, 1.0);
  EXPECT_EQ(config.yarn.mscale, 1.0);
  EXPECT_EQ(config.yarn.mscale_all_dim, 1.0);
  EXPECT_EQ(config.mla.q_lora_rank, 1536);
  EXPECT_EQ(config.mla.kv_lora_rank, 512);
  EXPECT_EQ(config.mla.qk_nope_head_dim, 128);
  EXPECT_EQ(config.mla.qk_rope_head_dim, 64);
  EXPECT_EQ(config.mla.v_head_dim, 128);
  EXPECT_EQ(config.moe.num_experts, 256);
  EXPECT_EQ(config.moe.top_k, 8);
  EXPECT_EQ(config.moe.expert_dim, 2048);
  EXPECT_EQ(config.moe.num_shared_experts, 1);
  EXPECT_EQ(config.moe.score, ScoreFunction::kSigmoid);
  EXPECT_EQ(config.moe.num_groups, 8);
  EXPECT_EQ(config.moe.top_groups, 4);
  EXPECT_TRUE(config.moe.normalise_weights);
  EXPECT_EQ(config.moe.routed_scale, 2.5);

  // DeepSeek-V3.1's scales, and transformers' name of other ones.
  EXPECT_EQ(model.scales, HfScales::kNumbers);
  Json scaled = deepseek_v3();
  scaled["quantization_config"]["scale_fmt"] = "ue8m0";
  EXPECT_EQ(read(scaled).scales, HfScales::kPowersOfTwo);
  expect_same(read(Json::parse(to_config_json(read(scaled), ""))), read(scaled));
  scaled["quantization_config"]["scale_fmt"] = "float";
  EXPECT_EQ(read(scaled).scales, HfScales::kNumbers);
}

TEST(ConfigJson, ReadsDeepseekV2) {
  const ModelConfig lite = read(deepseek_v2_lite()).config;
  EXPECT_EQ(lite.mla.q_lora_rank, 0);
  EXPECT_EQ(lite.moe.score, ScoreFunction::kSoftmax);
  EXPECT_EQ(lite.moe.num_groups, 1);
  EXPECT_FALSE(lite.moe.normalise_weights);
  EXPECT_EQ(lite.moe.bias_rate, 0.0);
  EXPECT_EQ(lite.moe.num_shared_experts, 2);
  EXPECT_EQ(lite.yarn.mscale, 0.707);
  EXPECT_EQ(lite.yarn.mscale_all_dim, 0.707);

  Json whole = deepseek_v2_lite();
  whole.update(Json::parse(R"({"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3,
    "n_routed_experts": 160, "routed_scaling_factor": 16.0, "q_lora_rank": 1536, "hidden_size": 5120,
    "num_attention_heads": 128, "num_key_value_heads": 128})"));
  const ModelConfig config = read(whole).config;
  EXPECT_EQ(config.moe.num_groups, 8);
  EXPECT_EQ(config.moe.top_groups, 3);
  EXPECT_EQ(config.moe.routed_scale, 16.0);
  EXPECT_EQ(config.mla.q_lora_rank, 1536);

  // Greedy selection does not look at groups, which may be null.
  Json greedy = deepseek_v2_lite();
  greedy["n_group"] = greedy["topk_group"] = nullptr;
  EXPECT_EQ(read(greedy).config.moe.num_groups, 1);
}

TEST(ConfigJson, ReadsMoonlight) {
  const HfModel model = read(moonlight());
  EXPECT_EQ(model.type, ModelType::kDeepseekV3);
  EXPECT_EQ(model.format, HfFormat::kPlain);
  EXPECT_EQ(model.config.norm_eps, 1e-5);
  EXPECT_EQ(model.config.mla.norm_eps, 1e-6);  // the latents' norms keep their own
  EXPECT_EQ(model.config.yarn.factor, 1.0);
  EXPECT_EQ(model.config.rope.theta, 50000.0);
  EXPECT_EQ(model.config.moe.routed_scale, 2.446);
}

// What configs/models says of the two is what they say of themselves; how they are balanced is its own.
TEST(ConfigJson, ConfigurationsOfDeepseeksKindAreThoseModels) {
  for (const auto& [file, json] :
       {std::pair("moonlight-16b-a3b", moonlight()), {"deepseek-v2-lite", deepseek_v2_lite()}}) {
    const ModelConfig published = read(json).config;
    ModelConfig own = load_config(fs::path(NMOE_SOURCE_DIR) / "configs/models" / (std::string(file) + ".toml")).model;
    own.moe.balance_loss = published.moe.balance_loss;
    own.moe.bias_rate = published.moe.bias_rate;
    EXPECT_EQ(printed(own), printed(published)) << file;
  }
}

TEST(ConfigJson, ReadsKimiK2) {
  const HfModel model = read(kimi_k2());
  EXPECT_EQ(model.type, ModelType::kKimiK2);
  EXPECT_EQ(model.config.moe.num_experts, 384);
  EXPECT_EQ(model.config.moe.num_groups, 1);
  EXPECT_EQ(model.config.yarn.beta_fast, 1.0);
  EXPECT_EQ(model.config.yarn.factor, 32.0);
  const Json written = Json::parse(to_config_json(model));
  EXPECT_EQ(written["model_type"], "kimi_k2");
  EXPECT_EQ(written["architectures"], Json::array({"DeepseekV3ForCausalLM"}));
}

TEST(ConfigJson, ReadsQwen3Moe) {
  const HfModel model = read(qwen3_moe());
  const ModelConfig& config = model.config;
  EXPECT_EQ(model.type, ModelType::kQwen3Moe);
  EXPECT_EQ(config.attention, PartKind::kGqa);
  EXPECT_EQ(config.gqa.num_kv_heads, 4);
  EXPECT_EQ(config.gqa.head_dim, 128);
  EXPECT_TRUE(config.gqa.qk_norm);
  EXPECT_EQ(config.rope.layout, RopeLayout::kHalfSplit);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.num_dense_layers, 0);
  EXPECT_EQ(config.moe.num_experts, 128);
  EXPECT_EQ(config.moe.num_shared_experts, 0);
  EXPECT_EQ(config.moe.score, ScoreFunction::kSoftmax);
  EXPECT_TRUE(config.moe.normalise_weights);
  EXPECT_EQ(config.moe.bias_rate, 0.0);
  EXPECT_EQ(config.moe.routed_scale, 1.0);

  Json other = qwen3_moe();
  other["mlp_only_layers"] = {1, 0};
  other["num_local_experts"] = other["num_experts"];  // what version 5 calls it
  other.erase("num_experts");
  other.erase("head_dim");
  other["eos_token_id"] = {5, 7};
  other["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  const HfModel read_other = read(other);
  EXPECT_EQ(read_other.config.num_dense_layers, 2);
  EXPECT_EQ(read_other.config.moe.num_experts, 128);
  EXPECT_EQ(read_other.config.gqa.head_dim, 2048 / 32);
  EXPECT_EQ(read_other.eos_ids, (std::vector<int64_t>{5, 7}));
  EXPECT_EQ(read_other.config.yarn.mscale, 1.0);
  EXPECT_EQ(read_other.config.yarn.mscale_all_dim, 0.0);  // no softmax correction in Qwen3
}

// What some releases say beside, and transformers computes anyway.
TEST(ConfigJson, ReadsQwen3MoeWithKeysOfItsReleases) {
  Json released = qwen3_moe();
  released["use_qk_norm"] = true;
  released["qkv_bias"] = false;
  released["mlp_bias"] = false;
  released["shared_expert_intermediate_size"] = 0;
  const HfModel model = read(released);
  EXPECT_EQ(to_config_json(model), to_config_json(read(qwen3_moe())));
  EXPECT_EQ(Json::parse(to_config_json(model, released.dump())), released);
  for (const auto& [key, value] : {std::pair{"use_qk_norm", Json(false)},
                                   {"qkv_bias", Json(true)},
                                   {"mlp_bias", Json(true)},
                                   {"shared_expert_intermediate_size", Json(512)}}) {
    Json other = released;
    other[key] = value;
    EXPECT_TRUE(contains(error_of([&] { read(other); }).what(), key)) << key;
  }
}

// The keys of a small model that transformers 5.17 saved.
TEST(ConfigJson, ReadsWhatTransformersFiveWrites) {
  const Json json = Json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 0,
    "dtype": "float32", "eos_token_id": 1, "first_k_dense_replace": 1, "head_dim": 16, "hidden_act": "silu",
    "hidden_size": 128, "initializer_range": 0.02, "intermediate_size": 256, "kv_lora_rank": 32,
    "max_position_embeddings": 256, "model_type": "deepseek_v3", "moe_intermediate_size": 64, "n_group": 1,
    "n_routed_experts": 8, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 4,
    "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_key_value_heads": 4, "num_nextn_predict_layers": 1,
    "pad_token_id": null, "pretraining_tp": 1, "q_lora_rank": 48, "qk_head_dim": 48, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "rms_norm_eps": 1e-06, "rope_interleave": true,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "routed_scaling_factor": 2.5,
    "tie_word_embeddings": false, "topk_group": 1, "transformers_version": "5.17.0", "use_cache": true,
    "v_head_dim": 32, "vocab_size": 512})");
  const HfModel model = read(json);
  EXPECT_EQ(model.dtype, "float32");
  EXPECT_EQ(model.config.num_layers, 4);
  EXPECT_EQ(model.config.mla.q_lora_rank, 48);
  EXPECT_EQ(model.config.rope.theta, 10000.0);
  EXPECT_EQ(model.config.yarn.factor, 1.0);
  EXPECT_EQ(model.num_nextn_predict_layers, 1);
  EXPECT_EQ(Json::parse(to_config_json(model, json.dump())), json);
}

TEST(ConfigJson, EveryFixtureRoundTrips) {
  const auto fixtures = test::hf_fixtures();
  if (fixtures.empty()) GTEST_SKIP() << "no models in tests/fixtures/hf: scripts/hf_fixture.py writes them";
  for (const fs::path& fixture : fixtures) {
    SCOPED_TRACE(fixture);
    const std::string text = read_file(fixture / "config.json");
    const HfModel model = from_config_json(text, "config.json");
    EXPECT_EQ(Json::parse(to_config_json(model, text)), Json::parse(text));
    expect_same(from_config_json(to_config_json(model), "config.json"), model);
    if (model.type == ModelType::kKimiK2 || model.type == ModelType::kGlm4MoeLite) continue;  // a DeepSeek-V3 does it
    EXPECT_EQ(nearest_type(model.config), model.type);
  }
}

TEST(ConfigJson, BothSpellingsOfRopeMeanTheSame) {
  const Json old_style = deepseek_v3();
  Json new_style = old_style;
  new_style["rope_parameters"] = new_style["rope_scaling"];
  new_style["rope_parameters"]["rope_type"] = "yarn";
  new_style["rope_parameters"]["rope_theta"] = 10000.0;
  new_style.erase("rope_scaling");
  new_style.erase("rope_theta");
  expect_same(read(new_style), read(old_style));

  Json unit = old_style;  // a factor of 1 changes no frequency
  unit["rope_scaling"]["factor"] = 1.0;
  Json plain = old_style;
  plain["rope_scaling"] = nullptr;
  expect_same(read(unit), read(plain));
}

TEST(ConfigJson, RoundTrips) {
  for (const Json& json : {deepseek_v3(), deepseek_v2_lite(), moonlight(), kimi_k2(), qwen3_moe()}) {
    const HfModel model = read(json);
    const std::string text = to_config_json(model);
    expect_same(from_config_json(text, "config.json"), model);
    EXPECT_EQ(Json::parse(text)["model_type"], json["model_type"]);
    EXPECT_EQ(to_config_json(from_config_json(text, "config.json")), text);
  }
}

// DeepSeek's own code, vLLM and transformers 4 read these names.
TEST(ConfigJson, WritesPublishedKeys) {
  const Json published = deepseek_v3();
  const Json written = Json::parse(to_config_json(read(published)));
  for (const char* harmless : {"auto_map", "aux_loss_alpha", "initializer_range", "seq_aux", "transformers_version",
                               "use_cache", "ep_size", "pretraining_tp", "attention_dropout"}) {
    EXPECT_FALSE(written.contains(harmless)) << harmless;
  }
  for (const auto& [key, value] : written.items()) {
    if (key == "rope_interleave") continue;                                      // transformers' own, with its default
    EXPECT_EQ(nlohmann::json(value), nlohmann::json(published.at(key))) << key;  // in any order
  }
}

TEST(ConfigJson, ABaseKeepsWhatDoesNotDiffer) {
  const Json base = deepseek_v3();
  HfModel model = read(base);
  EXPECT_EQ(to_config_json(model, base.dump()), base.dump(2) + "\n");  // order of keys included

  model.config.max_positions = 8192;
  model.format = HfFormat::kPlain;
  model.dtype = "float32";
  model.num_nextn_predict_layers = 0;
  Json wanted = base;
  wanted["max_position_embeddings"] = 8192;
  wanted.erase("quantization_config");
  wanted["torch_dtype"] = "float32";
  wanted["num_nextn_predict_layers"] = 0;
  EXPECT_EQ(Json::parse(to_config_json(model, base.dump())), wanted);
}

TEST(ConfigJson, ABaseLosesOtherNamesOfWhatDiffers) {
  Json base = qwen3_moe();
  base["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  base["dtype"] = "bfloat16";
  for (const char* key : {"rope_scaling", "rope_theta", "torch_dtype"}) base.erase(key);
  HfModel model = read(base);
  EXPECT_EQ(Json::parse(to_config_json(model, base.dump())), base);

  model.config.rope.theta = 5e5;
  model.dtype = "float32";
  const Json changed = Json::parse(to_config_json(model, base.dump()));
  EXPECT_FALSE(changed.contains("rope_parameters"));
  EXPECT_FALSE(changed.contains("dtype"));
  EXPECT_EQ(changed["rope_theta"], 5e5);
  EXPECT_EQ(changed["torch_dtype"], "float32");
}

// What a changed file is told.
struct Refusal {
  Json (*model)();
  const char* change;  // merged into the model's file; null removes the key (RFC 7396)
  const char* says;
};

class ConfigJsonRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(ConfigJsonRefuses, WithTheKey) {
  Json json = GetParam().model();
  json.merge_patch(Json::parse(GetParam().change));
  const Error error = error_of([&] { read(json); });
  EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
  EXPECT_TRUE(contains(error.what(), GetParam().says));
  EXPECT_TRUE(contains(error.what(), "'config.json'"));
  EXPECT_NE(error.remedy(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Shared, ConfigJsonRefuses,
    testing::Values(Refusal{deepseek_v3, R"({"index_topk": 2048})", "index_topk = 2048: nmoe does not know"},
                    Refusal{deepseek_v3, R"({"model_type": "gemma2"})", "model_type = \"gemma2\""},
                    Refusal{deepseek_v3, R"({"model_type": null})", "model_type"},
                    Refusal{deepseek_v3, R"({"architectures": ["DeepseekV3ForSequenceClassification"]})",
                            "architectures"},
                    Refusal{deepseek_v3, R"({"hidden_size": null})", "hidden_size: is missing"},
                    Refusal{deepseek_v3, R"({"hidden_size": 71.5})", "hidden_size = 71.5"},
                    Refusal{deepseek_v3, R"({"hidden_size": 0})", "hidden_size = 0"},
                    Refusal{deepseek_v3, R"({"hidden_size": 18446744073709551615})", "hidden_size = "},
                    Refusal{deepseek_v3, R"({"rms_norm_eps": "small"})", "rms_norm_eps = \"small\""},
                    Refusal{deepseek_v3, R"({"tie_word_embeddings": 1})", "tie_word_embeddings = 1"},
                    Refusal{deepseek_v3, R"({"hidden_act": "gelu"})", "hidden_act = \"gelu\""},
                    Refusal{deepseek_v3, R"({"attention_bias": true})", "attention_bias = true"},
                    Refusal{deepseek_v3, R"({"attention_dropout": 0.1})", "attention_dropout = 0.1"},
                    Refusal{deepseek_v3, R"({"pretraining_tp": 2})", "pretraining_tp = 2"},
                    Refusal{deepseek_v3, R"({"torch_dtype": "int8"})", "torch_dtype = \"int8\""},
                    Refusal{deepseek_v3, R"({"dtype": "float32"})", "torch_dtype = \"bfloat16\": dtype = \"float32\""},
                    Refusal{deepseek_v3, R"({"eos_token_id": [1, "end"]})", "eos_token_id"},
                    Refusal{deepseek_v3, R"({"bos_token_id": -2})", "bos_token_id = -2"},
                    Refusal{deepseek_v3, R"({"vocab_size": 99999999})", "model.vocab_size would be 99999999"},
                    Refusal{deepseek_v3, R"({"num_experts_per_tok": 200})", "model.moe.top_k = 200"}));

INSTANTIATE_TEST_SUITE_P(
    Deepseek, ConfigJsonRefuses,
    testing::Values(Refusal{deepseek_v3, R"({"moe_layer_freq": 2})", "moe_layer_freq = 2"},
                    Refusal{deepseek_v3, R"({"ep_size": 8})", "ep_size = 8"},
                    Refusal{deepseek_v3, R"({"num_key_value_heads": 64})", "num_key_value_heads = 64"},
                    Refusal{deepseek_v3, R"({"head_dim": 56})", "head_dim = 56"},
                    Refusal{deepseek_v3, R"({"qk_head_dim": 128})", "qk_head_dim = 128"},
                    Refusal{deepseek_v3, R"({"scoring_func": "softmax"})", "scoring_func = \"softmax\""},
                    Refusal{deepseek_v3, R"({"topk_method": "greedy"})", "topk_method = \"greedy\""},
                    Refusal{deepseek_v3, R"({"n_group": null})", "n_group: is missing"},
                    Refusal{deepseek_v3, R"({"topk_group": 9})", "topk_group = 9"},
                    Refusal{deepseek_v3, R"({"mlp_bias": false})", "mlp_bias = false"},
                    Refusal{deepseek_v3, R"({"n_routed_experts": null})", "n_routed_experts: is missing"},
                    Refusal{deepseek_v3, R"({"first_k_dense_replace": 61})", "model.num_dense_layers = 61"},
                    Refusal{deepseek_v2_lite, R"({"norm_topk_prob": true})", "norm_topk_prob = true"},
                    Refusal{deepseek_v2_lite, R"({"scoring_func": "sigmoid"})", "scoring_func = \"sigmoid\""},
                    Refusal{deepseek_v2_lite, R"({"topk_method": "noaux_tc"})", "topk_method = \"noaux_tc\""},
                    Refusal{deepseek_v2_lite, R"({"topk_method": null})", "topk_method"},
                    Refusal{deepseek_v2_lite, R"({"mlp_bias": true})", "mlp_bias = true"},
                    Refusal{deepseek_v2_lite, R"({"rope_interleave": false})", "rope_interleave = false"},
                    Refusal{deepseek_v2_lite, R"({"num_nextn_predict_layers": 1})", "num_nextn_predict_layers = 1"}));

INSTANTIATE_TEST_SUITE_P(
    Quantised, ConfigJsonRefuses,
    testing::Values(Refusal{deepseek_v3, R"({"quantization_config": {"quant_method": "gptq"}})",
                            "quantization_config.quant_method = \"gptq\""},
                    Refusal{deepseek_v3, R"({"quantization_config": {"fmt": "e5m2"}})", "quantization_config.fmt"},
                    Refusal{deepseek_v3, R"({"quantization_config": {"weight_block_size": [64, 64]}})",
                            "quantization_config.weight_block_size = [64,64]"},
                    Refusal{deepseek_v3, R"({"quantization_config": {"weight_block_size": null}})",
                            "quantization_config.weight_block_size: is missing"},
                    Refusal{deepseek_v3, R"({"quantization_config": {"scale_fmt": "e5m3"}})",
                            "quantization_config.scale_fmt = \"e5m3\""},
                    Refusal{deepseek_v3, R"({"quantization_config": {"bits": 4}})", "quantization_config.bits = 4"}));

INSTANTIATE_TEST_SUITE_P(
    Rope, ConfigJsonRefuses,
    testing::Values(
        Refusal{deepseek_v3, R"({"rope_theta": null})", "rope_theta: is missing"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.type = \"linear\""},
        Refusal{deepseek_v3, R"({"rope_scaling": {"rope_type": "llama3"}})", "rope_scaling.type = \"yarn\" says"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"type": "default"}})", "rope_scaling.beta_fast = 32"},
        Refusal{deepseek_v3, R"({"rope_parameters": {"rope_theta": 10000}})", "rope_parameters says it too"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"rope_theta": 50000}})", "rope_theta = 10000"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"partial_rotary_factor": 0.5}})", "partial_rotary_factor = 0.5"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"factor": null}})", "rope_scaling.factor: is missing"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"factor": 0.5}})", "rope_scaling.factor = 0.5"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"truncate": false}})", "rope_scaling.truncate = false"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"attention_factor": 1.2}})", "rope_scaling.attention_factor = 1.2"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"long_factor": [1]}})", "rope_scaling.long_factor"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"original_max_position_embeddings": null}})",
                "rope_scaling.original_max_position_embeddings: is missing"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"original_max_position_embeddings": 6}})",
                "rope_scaling.original_max_position_embeddings = 6"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"mscale": 0.707, "mscale_all_dim": null}})",
                "rope_scaling.mscale = 0.707"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"mscale": 0.707, "mscale_all_dim": 0}})",
                "rope_scaling.mscale = 0.707"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"mscale": null}})", "rope_scaling.mscale_all_dim = 1"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"mscale": 0}})", "rope_scaling.mscale_all_dim = 1"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"mscale": -1}})", "rope_scaling.mscale = -1"},
        Refusal{deepseek_v3, R"({"rope_scaling": {"beta_slow": 33}})", "model.yarn.beta_slow = 33"},
        Refusal{qwen3_moe, R"({"rope_scaling": {"rope_type": "yarn", "factor": 4, "mscale": 1, "mscale_all_dim": 1,
                                                "original_max_position_embeddings": 32768}})",
                "rope_scaling.mscale_all_dim = 1"}));

INSTANTIATE_TEST_SUITE_P(
    Qwen3, ConfigJsonRefuses,
    testing::Values(Refusal{qwen3_moe, R"({"mlp_only_layers": 1})", "mlp_only_layers = 1"},
                    Refusal{qwen3_moe, R"({"decoder_sparse_step": 0})", "decoder_sparse_step = 0"},
                    Refusal{qwen3_moe, R"({"layer_types": ["sliding_attention"]})", "layer_types"},
                    Refusal{qwen3_moe, R"({"use_sliding_window": true, "sliding_window": 0})", "sliding_window = 0"},
                    Refusal{qwen3_moe, R"({"layer_types": ["sliding_attention"]})", "layer_types"},
                    Refusal{qwen3_moe, R"({"output_router_logits": true})", "output_router_logits = true"},
                    Refusal{qwen3_moe, R"({"num_local_experts": 64})", "num_local_experts = 64 says otherwise"},
                    Refusal{qwen3_moe, R"({"num_key_value_heads": null})", "num_key_value_heads: is missing"},
                    Refusal{qwen3_moe, R"({"num_key_value_heads": 5})", "model.gqa.num_kv_heads = 5"},
                    Refusal{qwen3_moe, R"({"head_dim": null, "hidden_size": 2050})", "head_dim: is missing"},
                    Refusal{qwen3_moe, R"({"shared_expert_intermediate_size": 64})", "shared_expert_intermediate_size"},
                    Refusal{qwen3_moe, R"({"n_shared_experts": 1})", "n_shared_experts = 1"}));

TEST(ConfigJson, RefusesWhatIsNoObject) {
  EXPECT_TRUE(contains(error_of([] { from_config_json("[1, 2]", "a/config.json"); }).what(), "'a/config.json'"));
  EXPECT_TRUE(contains(error_of([] { from_config_json("{\"a\": ", "a/config.json"); }).what(), "'a/config.json'"));
}

// A model of nmoe's own, and a change after which no type has it.
ModelConfig own_model(ModelType type) {
  ModelConfig config;
  config.vocab_size = 128;
  config.max_positions = 64;
  config.moe.num_experts = 8;
  config.moe.num_shared_experts = 0;
  if (type == ModelType::kDeepseekV3) return config;
  config.moe.score = ScoreFunction::kSoftmax;
  config.moe.bias_rate = 0.0;
  if (type == ModelType::kDeepseekV2) {
    config.moe.normalise_weights = false;
    return config;
  }
  config.attention = PartKind::kGqa;
  config.gqa.qk_norm = true;
  return config;
}

TEST(NearestType, ComputesTheSame) {
  for (const ModelType type : {ModelType::kDeepseekV2, ModelType::kDeepseekV3, ModelType::kQwen3Moe}) {
    HfModel model;
    model.config = own_model(type);
    model.type = nearest_type(model.config);
    EXPECT_EQ(model.type, type) << model_type_name(type);
    EXPECT_EQ(obstacles_to(model.config, type), std::vector<std::string>());
    HfModel read = model;
    read.config.rope.layout = only_rope_layout(type).value_or(model.config.rope.layout);
    expect_same(from_config_json(to_config_json(model), "config.json"), read);
  }
}

struct Unfit {
  ModelType type;
  std::function<void(ModelConfig&)> change;
  const char* key;
};

TEST(NearestType, ObstaclesHaveNames) {
  using enum ModelType;
  const std::vector<Unfit> cases = {
      {kDeepseekV3, [](ModelConfig& c) { c.moe.num_experts = 0; }, "model.moe.num_experts = 0"},
      {kDeepseekV3, [](ModelConfig& c) { c.moe.num_experts = 1; }, "model.moe.num_experts = 1"},
      {kDeepseekV3, [](ModelConfig& c) { c.activation = Activation::kReluSquared; }, "model.activation"},
      {kDeepseekV3, [](ModelConfig& c) { c.window = 16; }, "model.window = 16"},
      {kDeepseekV3, [](ModelConfig& c) { c.layers = "mla/moe, mla/dense"; }, "model.layers = \"mla/moe, mla/dense\""},
      {kDeepseekV3, [](ModelConfig& c) { c.layers = "2 x (mla:8/moe, mla/moe)"; }, "no windows"},
      {kQwen3Moe, [](ModelConfig& c) { c.layers = "mla/moe, gqa/moe"; }, "one kind of attention"},
      {kQwen3Moe, [](ModelConfig& c) { c.layers = "gqa, moe"; },
       "both attention and a feed-forward part in every layer"},
      {kQwen3Moe, [](ModelConfig& c) { c.layers = "3 x gqa/moe, gqa_nope/moe"; }, "rotary positions"},
      {kDeepseekV3, [](ModelConfig& c) { c.layers = "dense, mla/moe"; }, "model.layers = \"dense, mla/moe\""},
      {kDeepseekV3, [](ModelConfig& c) { c.mla.norm_eps = 1e-5; }, "model.mla.norm_eps"},
      {kDeepseekV3,
       [](ModelConfig& c) {
         c.yarn.factor = 4.0;
         c.yarn.mscale = 0.707;
       },
       "model.yarn.mscale = 0.707"},
      {kDeepseekV2, [](ModelConfig& c) { c.moe.normalise_weights = true; }, "model.moe.normalise_weights = true"},
      {kDeepseekV2, [](ModelConfig& c) { c.moe.bias_rate = 0.001; }, "model.moe.bias_rate"},
      {kDeepseekV2, [](ModelConfig& c) { c.num_heads = 3; }, "model.dim = 256"},
      {kQwen3Moe,
       [](ModelConfig& c) {
         c.gqa.qk_norm = false;
         c.moe.normalise_weights = false;  // else it is Mixtral's
       },
       "model.gqa.qk_norm = false"},
      {kQwen3Moe, [](ModelConfig& c) { c.moe.num_shared_experts = 1; }, "model.moe.num_shared_experts = 1"},
      {kQwen3Moe, [](ModelConfig& c) { c.moe.score = ScoreFunction::kSigmoid; }, "model.moe.score"},
      {kQwen3Moe, [](ModelConfig& c) { c.moe.num_groups = 2; }, "model.moe.num_groups = 2"},
      {kQwen3Moe, [](ModelConfig& c) { c.moe.routed_scale = 2.0; }, "model.moe.routed_scale = 2"},
      {kQwen3Moe, [](ModelConfig& c) { c.moe.bias_rate = 0.001; }, "model.moe.bias_rate"},
      {kQwen3Moe,
       [](ModelConfig& c) {
         c.yarn.factor = 4.0;
         c.yarn.mscale_all_dim = 1.0;
       },
       "model.yarn.mscale_all_dim = 1"},
  };
  for (const Unfit& unfit : cases) {
    ModelConfig config = own_model(unfit.type);
    unfit.change(config);
    const ModelType type = nearest_type(config);
    const std::vector<std::string> obstacles = obstacles_to(config, type);
    ASSERT_FALSE(obstacles.empty()) << unfit.key;
    const Error error = not_expressible(type, obstacles);
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_TRUE(contains(error.what(), unfit.key));
    EXPECT_NE(error.remedy(), "");
  }
}

// Whoever mends one learns of no other afterwards.
TEST(NearestType, AllObstaclesAreNamedAtOnce) {
  ModelConfig config;
  config.attention = PartKind::kGqa;
  config.activation = Activation::kReluSquared;
  config.moe.num_experts = 8;
  EXPECT_EQ(obstacles_to(config, nearest_type(config)),
            (std::vector<std::string>{"model.activation = \"relu_squared\": qwen3_moe has swiglu",
                                      "model.gqa.qk_norm = false: qwen3_moe has norms of queries and keys",
                                      "model.moe.num_shared_experts = 1: qwen3_moe has none",
                                      "model.moe.score = \"sigmoid\": qwen3_moe has softmax",
                                      "model.moe.bias_rate = 0.005: qwen3_moe has no selection bias"}));
  // A pattern that no type has hides none of the others.
  config.layers = "gqa:64/moe, mla/dense";
  const auto obstacles = obstacles_to(config, nearest_type(config));
  ASSERT_EQ(obstacles.size(), 6u);
  EXPECT_TRUE(obstacles[0].starts_with("model.layers = \"gqa:64/moe, mla/dense\": qwen3_moe has one kind"));
}

// No key but the pattern names them.
TEST(NearestType, RecurrentLayersAreRefusedByName) {
  for (const char* pattern : {"2 x mamba2/dense", "4 x (mamba2, moe), gqa, moe", "mamba2/moe, mla/moe",
                              "2 x gated_deltanet/dense", "gated_deltanet, moe, gqa_nope, moe"}) {
    ModelConfig config;
    config.layers = pattern;
    config.moe.num_experts = 8;
    const std::vector<std::string> obstacles = obstacles_to(config, nearest_type(config));
    ASSERT_FALSE(obstacles.empty()) << pattern;
    EXPECT_TRUE(obstacles[0].starts_with(fmt::format("model.layers = \"{}\"", pattern))) << obstacles[0];
    EXPECT_FALSE(without_pattern(config).has_value());
  }
}

// What no type has, of a model that has all else.
TEST(NearestType, GatesAndZeroCentredNormsAreRefusedByName) {
  ModelConfig config = own_model(ModelType::kQwen3Moe);
  ASSERT_TRUE(obstacles_to(config, ModelType::kQwen3Moe).empty());
  config.zero_centred_norms = true;
  config.gqa.output_gate = true;
  const std::vector<std::string> obstacles = obstacles_to(config, nearest_type(config));
  ASSERT_EQ(obstacles.size(), 2u);
  EXPECT_TRUE(obstacles[0].starts_with("model.zero_centred_norms = true")) << obstacles[0];
  EXPECT_TRUE(obstacles[1].starts_with("model.gqa.output_gate = true")) << obstacles[1];
}

TEST(ToConfigJson, WritesAPatternThatTheTypeCanExpress) {
  HfModel by_keys{.type = ModelType::kDeepseekV3, .config = own_model(ModelType::kDeepseekV3)};
  by_keys.config.vocab_size = 100;
  by_keys.config.max_positions = 64;
  by_keys.config.num_layers = 5;
  by_keys.config.num_dense_layers = 2;
  HfModel by_pattern = by_keys;
  by_pattern.config.layers = "2 x mla/dense, 3 x mla/moe";
  by_pattern.config.num_layers = 1;
  by_pattern.config.num_dense_layers = 0;
  EXPECT_EQ(nearest_type(by_pattern.config), ModelType::kDeepseekV3);
  EXPECT_EQ(to_config_json(by_pattern), to_config_json(by_keys));
}

}  // namespace
}  // namespace nmoe
