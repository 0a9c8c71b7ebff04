#include "config/layers.h"

#include <gtest/gtest.h>

#include "config/load.h"
#include "expect_error.h"

namespace nmoe {
namespace {

constexpr PartKind kMla = PartKind::kMla, kGqa = PartKind::kGqa, kDense = PartKind::kDense, kMoe = PartKind::kMoe;

std::vector<LayerSpec> layers_of(std::string_view pattern) {
  const LayerPattern read = read_layer_pattern(pattern);
  EXPECT_FALSE(read.problem) << pattern << ": " << read.problem->what;
  return read.layers;
}

TEST(LayerPattern, CountsGroupsWindowsAndWidths) {
  const LayerSpec dense{{{.kind = kMla}, {.kind = kDense}}}, moe{{{.kind = kMla}, {.kind = kMoe}}};
  EXPECT_EQ(layers_of("mla/dense, 2 x mla/moe"), (std::vector<LayerSpec>{dense, moe, moe}));
  EXPECT_EQ(layers_of(" mla / dense,2x mla/moe "), (std::vector<LayerSpec>{dense, moe, moe}));
  const LayerSpec local{{{.kind = kGqa, .window = 512}, {.kind = kMoe, .hidden = 96}}},
      global{{{.kind = kGqa}, {.kind = kMoe}}};
  EXPECT_EQ(layers_of("2 x (2 x gqa:512/moe:96, gqa/moe)"),
            (std::vector<LayerSpec>{local, local, global, local, local, global}));
  EXPECT_EQ(layers_of("3 x (2 x (mla/dense))"), std::vector<LayerSpec>(6, dense));
}

TEST(LayerPattern, LayersMayHaveASinglePart) {
  const LayerSpec gqa{{{.kind = kGqa}}}, local{{{.kind = kGqa, .window = 8}}}, moe{{{.kind = kMoe}}},
      dense{{{.kind = kDense, .hidden = 48}}}, both{{{.kind = kMla}, {.kind = kDense}}};
  EXPECT_EQ(layers_of("gqa, moe"), (std::vector<LayerSpec>{gqa, moe}));
  EXPECT_EQ(layers_of("2 x (gqa:8, dense:48), mla/dense, 2 x moe, gqa"),
            (std::vector<LayerSpec>{local, dense, local, dense, both, moe, moe, gqa}));
}

TEST(LayerPattern, AttentionMayBeWithoutRotaryPositions) {
  const LayerSpec rotates{{{.kind = kGqa, .window = 4}}}, plain{{{.kind = kGqa, .rotates = false}, {.kind = kMoe}}};
  EXPECT_EQ(layers_of("gqa:4, gqa_nope/moe"), (std::vector<LayerSpec>{rotates, plain}));
  EXPECT_NE(layers_of("gqa"), layers_of("gqa_nope"));
}

TEST(LayerPattern, RecurrentLayersAreMixersOfTheirOwn) {
  const PartSpec mamba2{.kind = PartKind::kMamba2, .rotates = false};
  EXPECT_EQ(layers_of("mamba2, 2 x mamba2/moe"),
            (std::vector<LayerSpec>{{{mamba2}}, {{mamba2, {.kind = kMoe}}}, {{mamba2, {.kind = kMoe}}}}));
}

TEST(LayerPattern, SaysWhereItCannotBeRead) {
  struct Case {
    const char* pattern;
    size_t character;
    const char* what;
    const char* remedy;
  };
  for (const Case& c : {
           Case{"mla/dense, 2 x mlx/moe", 16, "\"mlx\" is not a part of a layer",
                "write mla, mla_nope, gqa, gqa_nope, mamba2, gated_deltanet, kda, dense or moe"},
           Case{"mla/dense,", 11, "a part of a layer was expected",
                "write mla, mla_nope, gqa, gqa_nope, mamba2, gated_deltanet, kda, dense or moe"},
           Case{"gqa/mla", 5, "\"mla\" is not a feed-forward kind", "write dense or moe"},
           Case{"2 x mamba2:64", 11, "mamba2 has no window", "write mamba2 alone"},
           Case{"gated_deltanet:64", 15, "gated_deltanet has no window", "write gated_deltanet alone"},
           Case{"3 x (kda:8, moe)", 9, "kda has no window", "write kda alone"},
           Case{"moe/gqa", 4, "a feed-forward part ends its layer", "separate layers by commas"},
           Case{"gqa/mo", 5, "\"mo\" is not a feed-forward kind", "write dense or moe"},
           Case{"gqa:0/moe", 5, "a window must be an integer from 1 to 1048576", "write such a number here"},
           Case{"gqa/moe:x", 9, "a hidden width must be an integer from 1 to 1048576", "write such a number here"},
           Case{"3 gqa/moe", 3, "\"x\" was expected", "write how often as in 3 x gqa/moe"},
           Case{"2 x (gqa/moe", 13, "\")\" was expected", "close the parenthesis"},
           Case{"gqa/moe)", 8, "\",\" or the end was expected", "separate layers by commas"},
           Case{"gqa/moe gqa/moe", 9, "\",\" or the end was expected", "separate layers by commas"},
           Case{"99999 x (99999 x gqa/moe)", 1, "more than 1048576 layers", "lower the count"},
       }) {
    const LayerPattern read = read_layer_pattern(c.pattern);
    ASSERT_TRUE(read.problem) << c.pattern;
    EXPECT_EQ(read.problem->character, c.character) << c.pattern;
    EXPECT_EQ(read.problem->what, c.what) << c.pattern;
    EXPECT_EQ(read.problem->remedy, c.remedy) << c.pattern;
    EXPECT_TRUE(read.layers.empty());
  }
  EXPECT_TRUE(read_layer_pattern(std::string(100, '(')).problem);
}

TEST(LayerSpecs, KeysAreAShorthand) {
  ModelConfig keys;
  keys.num_layers = 5;
  keys.num_dense_layers = 2;
  keys.moe.num_experts = 8;
  ModelConfig pattern = keys;
  pattern.layers = "2 x mla/dense, 3 x mla/moe";
  EXPECT_EQ(layer_specs(pattern), layer_specs(keys));
  EXPECT_EQ(layer_specs(keys)[1].parts[1].hidden, keys.dense_dim);
  EXPECT_EQ(layer_specs(keys)[2].parts[1].hidden, keys.moe.expert_dim);
}

TEST(LayerSpecs, TheLastLayerIsAlwaysGlobal) {
  ModelConfig config;
  config.num_layers = 7;
  config.window = 128;
  config.attn_global_every = 3;
  std::vector<int64_t> windows;
  for (const LayerSpec& layer : layer_specs(config)) windows.push_back(layer.parts.front().window);
  EXPECT_EQ(windows, (std::vector<int64_t>{128, 128, 0, 128, 128, 0, 0}));
}

// Shortest by counts of neighbours, or by one group that makes up all.
TEST(LayerPattern, IsWrittenFromLayers) {
  for (const char* pattern :
       {"gqa/moe", "mla/dense, 26 x mla/moe", "4 x (3 x gqa:512/moe, gqa/moe)", "2 x (gqa/dense, gqa:8/moe)",
        "gqa, moe, dense, gqa_nope", "4 x (2 x mamba2, moe)", "4 x (3 x gated_deltanet/moe, gqa/moe)",
        "kda/dense, 2 x kda/moe, mla_nope/moe", "2 x gqa:4096/moe", "gqa/moe, gqa/dense, gqa/moe"}) {
    EXPECT_EQ(write_layer_pattern(read_layer_pattern(pattern).layers), pattern);
  }
  EXPECT_EQ(write_layer_pattern(read_layer_pattern("gqa/moe, gqa/moe, 2 x gqa/dense").layers),
            "2 x gqa/moe, 2 x gqa/dense");
}

TEST(WithoutPattern, IsTheSameModelOrNone) {
  ModelConfig config;
  config.moe.num_experts = 8;
  EXPECT_EQ(without_pattern(config)->layers, "");
  config.layers = "gqa/dense:48, 3 x gqa/moe:40";
  const auto same = without_pattern(config);
  ASSERT_TRUE(same);
  EXPECT_EQ(same->layers, "");
  EXPECT_EQ(same->num_layers, 4);
  EXPECT_EQ(same->num_dense_layers, 1);
  EXPECT_EQ(same->attention, kGqa);
  EXPECT_EQ(same->dense_dim, 48);
  EXPECT_EQ(same->moe.expert_dim, 40);
  EXPECT_EQ(layer_specs(*same), layer_specs(config));
  for (const char* other : {"gqa/moe, mla/moe", "gqa:4/moe, gqa/moe", "gqa/moe, gqa/dense", "gqa/moe:8, gqa/moe:16",
                            "gqa, moe", "gqa/moe, moe", "dense, gqa/moe", "2 x gqa_nope/moe", "2 x mamba2/moe"}) {
    config.layers = other;
    EXPECT_FALSE(without_pattern(config)) << other;
  }
}

Config with_layers(const std::string& pattern, const std::string& rest = "") {
  return parse_config("model.layers = \"" + pattern + "\"\n" + rest, "x.toml");
}
void expect_refused(const std::string& pattern, const std::string& rest, const std::string& what,
                    const std::string& remedy) {
  expect_usage_error([&] { with_layers(pattern, rest); }, what, remedy);
}

TEST(LayersKey, ReplacesTheShorthand) {
  const std::string experts = "model.moe.num_experts = 8\n";
  EXPECT_EQ(layer_specs(with_layers("mla/dense, gqa/moe", experts + "model.gqa.head_dim = 32\n").model).size(), 2u);
  for (const char* key : {"num_layers = 2", "num_dense_layers = 1", "attention = \"gqa\"", "window = 8"}) {
    const std::string name = std::string("model.") + std::string(key).substr(0, std::string(key).find(' '));
    expect_refused("mla/dense, mla/moe", experts + "model." + key,
                   "x.toml:3: " + name + " has no effect because it needs model.layers = \"\"",
                   "remove it, or set model.layers = \"\"");
  }
  expect_refused("mla/dense, mla/moe", experts + "model.gqa.head_dim = 32",
                 "x.toml:3: model.gqa.head_dim has no effect because it needs a layer with gqa in model.layers",
                 "remove it, or set a layer with gqa in model.layers");
  expect_refused("2 x mamba2/moe", experts + "model.num_heads = 3",
                 "x.toml:3: model.num_heads has no effect because it needs mla or gqa in model.layers",
                 "remove it, or set mla or gqa in model.layers");
  expect_refused("mla/moe", experts + "model.dense_dim = 32",
                 "x.toml:3: model.dense_dim has no effect because it needs a dense layer without width in model.layers",
                 "remove it, or set a dense layer without width in model.layers");
  expect_refused("mla/moe:8", experts + "model.moe.expert_dim = 32",
                 "x.toml:3: model.moe.expert_dim has no effect because it needs a moe layer without width in "
                 "model.layers",
                 "remove it, or set a moe layer without width in model.layers");
}

// Keys that only layers of multi-token prediction use have an effect, and are part of what defines a run.
TEST(LayersKey, KeysMayBeForModulesAlone) {
  const std::string module = "model.mtp = { depth = 1, layers = \"gqa/moe\" }\nmodel.moe.num_experts = 8\n";
  const Config wide = with_layers("2 x gqa_nope/moe:48", module + "model.moe.expert_dim = 32\n");
  EXPECT_EQ(prediction_layer_specs(wide.model)[0].parts[1].hidden, 32);
  EXPECT_NE(config_fingerprint(wide),
            config_fingerprint(with_layers("2 x gqa_nope/moe:48", module + "model.moe.expert_dim = 64\n")));
  EXPECT_EQ(with_layers("2 x gqa_nope/moe:48", module + "model.rope.theta = 50000.0\n").model.rope.theta, 50000.0);
  expect_refused("2 x gqa_nope/moe:48",
                 "model.mtp = { depth = 1, layers = \"gqa_nope/moe:32\" }\nmodel.moe.num_experts = 8\n"
                 "model.moe.expert_dim = 32\n",
                 "x.toml:4: model.moe.expert_dim has no effect because it needs a moe layer without width in "
                 "model.layers",
                 "remove it, or set a moe layer without width in model.layers");
}

TEST(LayersKey, KeysOfRotationNeedAPartThatRotates) {
  const std::string theta = "model.rope.theta = 50000.0", odd = "model.gqa.head_dim = 3";
  EXPECT_EQ(with_layers("gqa_nope/dense, gqa/dense", theta).model.rope.theta, 50000.0);
  expect_refused(
      "2 x gqa_nope/dense", theta,
      "x.toml:2: model.rope.theta has no effect because it needs a mixer with rotary positions in model.layers",
      "remove it, or set a mixer with rotary positions in model.layers");
  EXPECT_EQ(with_layers("2 x gqa_nope/dense", odd).model.gqa.head_dim, 3);
  expect_refused("gqa/dense, gqa_nope/dense", odd, "x.toml:2: model.gqa.head_dim = 3: RoPE rotates pairs",
                 "make it even");
}

// As Mixtral's may, and gpt-oss' where its layers are odd in number.
TEST(LayersKey, TheLastLayerMayHaveAWindow) {
  EXPECT_EQ(layer_specs(with_layers("gqa/dense, gqa:8/dense").model)[1].parts[0].window, 8);
}

TEST(LayersKey, IsChecked) {
  expect_refused("mla/dense, mlx/dense", "",
                 "x.toml:1: model.layers = \"mla/dense, mlx/dense\": character 12: \"mlx\" is not a part of a layer",
                 "write mla, mla_nope, gqa, gqa_nope, mamba2, gated_deltanet, kda, dense or moe");
  expect_refused("dense, 2 x dense:8", "",
                 "x.toml:1: model.layers = \"dense, 2 x dense:8\": in no layer do positions see each other",
                 "write mla, gqa, mamba2, gated_deltanet or kda in some layer");
  expect_refused("gqa, dense", "model.moe.num_experts = 4",
                 "x.toml:2: model.layers = \"gqa, dense\" with model.moe.num_experts = 4: no layer has experts",
                 "write moe for dense in some layer, or set model.moe.num_experts = 0");
  expect_refused("gqa/moe", "",
                 "x.toml:1: model.layers = \"gqa/moe\" with model.moe.num_experts = 0: its moe layers have no experts",
                 "set model.moe.num_experts, or write dense for moe");
  expect_refused("gqa/dense", "model.moe.num_experts = 4",
                 "x.toml:2: model.layers = \"gqa/dense\" with model.moe.num_experts = 4: no layer has experts",
                 "write moe for dense in some layer, or set model.moe.num_experts = 0");
  expect_refused("mla/dense, gqa/dense", "model.gqa.head_dim = 3",
                 "x.toml:2: model.gqa.head_dim = 3: RoPE rotates pairs", "make it even");
  expect_refused("2 x mamba2/dense", "model.mamba2.num_groups = 3",
                 "x.toml:2: model.mamba2.num_groups = 3 with model.mamba2.num_heads = 8: groups share the heads evenly",
                 "let model.mamba2.num_groups divide model.mamba2.num_heads");
  expect_refused(
      "2 x mamba2/dense", "run.device = \"cuda\"\nmodel.mamba2.conv_width = 5",
      "x.toml:3: run.device = \"cuda\" with model.mamba2.conv_width = 5: on GPUs a convolution sees 4 tokens "
      "at most",
      "set run.device = \"cpu\" or model.mamba2.conv_width = 4");
  expect_refused("2 x mamba2/dense",
                 "run.device = \"cuda\"\nmodel.mamba2.num_heads = 129\nmodel.mamba2.head_dim = 64\n"
                 "model.mamba2.num_groups = 1",
                 "x.toml:5: run.device = \"cuda\" with model.mamba2.num_heads = 129, model.mamba2.head_dim = 64, "
                 "model.mamba2.num_groups = 1: on GPUs a group has 8,192 values at most",
                 "set run.device = \"cpu\" or raise model.mamba2.num_groups");
  expect_refused("2 x gated_deltanet/dense", "model.gated_deltanet.num_key_heads = 3",
                 "x.toml:2: model.gated_deltanet.num_key_heads = 3 with model.gated_deltanet.num_value_heads = 8: key "
                 "heads are shared evenly",
                 "let model.gated_deltanet.num_key_heads divide model.gated_deltanet.num_value_heads");
  expect_refused("gqa/dense", "model.gqa.output_gate = true\nmodel.gqa.bias = \"qkv\"",
                 "x.toml:3: model.gqa.output_gate = true with model.gqa.bias = \"qkv\": gates have no biases",
                 "remove one of them");
  expect_refused("mla/dense", "model.zero_centred_norms = true",
                 "x.toml:2: model.zero_centred_norms = true with model.layers = \"mla/dense\": mla has no such norms",
                 "write gqa for mla, or remove model.zero_centred_norms");
  expect_refused(
      "2 x gated_deltanet/dense", "run.device = \"cuda\"\nmodel.gated_deltanet.conv_width = 5",
      "x.toml:3: run.device = \"cuda\" with model.gated_deltanet.conv_width = 5: on GPUs a convolution sees 4 "
      "tokens at most",
      "set run.device = \"cpu\" or model.gated_deltanet.conv_width = 4");
  expect_refused("2 x gated_deltanet/dense", "run.device = \"cuda\"\nmodel.gated_deltanet.key_head_dim = 129",
                 "x.toml:3: run.device = \"cuda\" with model.gated_deltanet.key_head_dim = 129: on GPUs keys have 128 "
                 "values at most",
                 "set run.device = \"cpu\" or model.gated_deltanet.key_head_dim = 128");
  expect_refused("kda/dense", "run.device = \"cuda\"",
                 "x.toml:2: run.device = \"cuda\" with model.layers = \"kda/dense\": kda does not run on GPUs yet",
                 "set run.device = \"cpu\"");
  expect_refused(
      "mla_nope/dense", "run.device = \"cuda\"",
      "x.toml:2: run.device = \"cuda\" with model.layers = \"mla_nope/dense\": mla_nope does not run on GPUs yet",
      "set run.device = \"cpu\"");
}

TEST(LayersKey, IsPartOfTheFingerprintWhereItIsSet) {
  const Config pattern = with_layers("mla/dense, 3 x gqa/dense"), other = with_layers("4 x mla/dense");
  EXPECT_NE(config_fingerprint(pattern), config_fingerprint(other));
  EXPECT_NE(config_fingerprint(pattern), config_fingerprint(Config()));
  EXPECT_NE(print_config(pattern).find("layers "), std::string::npos);
  EXPECT_EQ(layer_specs(parse_config(print_config(pattern), "printed.toml").model), layer_specs(pattern.model));
  EXPECT_EQ(print_config(Config()).find("\nlayers"), std::string::npos);
  EXPECT_EQ(print_config(with_layers("")), print_config(Config()));
}

// Of the configurations that older checkpoints and resumed runs carry.
TEST(LayersKey, LeavesOldFingerprintsAsTheyWere) {
  EXPECT_EQ(config_fingerprint(Config()), "381b1e1f0db9574b34fc1ab5d57284a60232deebb55b5f4bb35726f87f396d02");
  EXPECT_EQ(config_fingerprint(parse_config("model.attention = \"gqa\"\nmodel.moe.num_experts = 4\n"
                                            "model.moe.bias_rate = 0.001\noptim.router.lr = 0.001\n",
                                            "x.toml")),
            "bae5390e58a19f61c246e578ea40f088895c42f6dee279a3fb819070e7ed99c1");
}

}  // namespace
}  // namespace nmoe
