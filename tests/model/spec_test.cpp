#include "model/spec/spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/small_models.h"

namespace nmoe::test {
namespace {

std::vector<std::string> names_of(const ModelSpec& model, int64_t layer) {
  std::vector<std::string> names;
  for (const WeightSpec& weight : model.weights) {
    if (weight.layer == layer) names.push_back(weight.name);
  }
  return names;
}

TEST(Spec, NamesWeightsInDefinitionOrder) {
  const ModelSpec model = describe_model(base_model());
  EXPECT_EQ(names_of(model, kNoLayer), (std::vector<std::string>{"embedding", "final_norm", "head"}));
  EXPECT_EQ(
      names_of(model, 0),
      (std::vector<std::string>{"layers.0.attention_norm", "layers.0.attention.q", "layers.0.attention.kv_down",
                                "layers.0.attention.k_rope", "layers.0.attention.kv_norm", "layers.0.attention.kv_up",
                                "layers.0.attention.out", "layers.0.mlp_norm", "layers.0.mlp.in", "layers.0.mlp.out"}));
  EXPECT_EQ(names_of(model, 1), (std::vector<std::string>{
                                    "layers.1.attention_norm", "layers.1.attention.q", "layers.1.attention.kv_down",
                                    "layers.1.attention.k_rope", "layers.1.attention.kv_norm",
                                    "layers.1.attention.kv_up", "layers.1.attention.out", "layers.1.mlp_norm",
                                    "layers.1.moe.router", "layers.1.moe.router_bias", "layers.1.moe.experts_in",
                                    "layers.1.moe.experts_out", "layers.1.moe.shared.in", "layers.1.moe.shared.out"}));
  EXPECT_EQ(model.weights.front().name, "embedding");
  EXPECT_EQ(model.weights.back().name, "head");
}

TEST(Spec, EachLayerHasItsPartsAndWidths) {
  ModelConfig config = base_model();
  config.layers = "mla/dense, gqa:2/moe:4, gqa/dense:7";
  const ModelSpec model = describe_model(config);
  ASSERT_EQ(model.layers.size(), 3u);
  const PartTraits &mla = model.layers[0].parts[0].traits, &gqa = model.layers[1].parts[0].traits,
                   &moe = model.layers[1].parts[1].traits;
  EXPECT_EQ(mla.rope_dim, 2);
  EXPECT_EQ(mla.state.widths, (std::vector<int64_t>{4 + 2}));  // latent and rotated key
  EXPECT_EQ(mla.flops_per_position, 6.0 * 2 * (3 + 2 + 5));
  EXPECT_EQ(gqa.rope_dim, 4);
  EXPECT_EQ(gqa.state.widths, (std::vector<int64_t>{4, 4}));  // keys and values of one head
  EXPECT_EQ(gqa.flops_per_position, 6.0 * 2 * (4 + 4));
  EXPECT_TRUE(moe.state.widths.empty());
  EXPECT_EQ(moe.flops_per_position, 0.0);
  const auto shape_of = [&](const std::string& name) {
    return std::ranges::find(model.weights, name, &WeightSpec::name)->shape;
  };
  EXPECT_EQ(shape_of("layers.0.mlp.in"), (Shape{2 * 5, 6}));
  EXPECT_EQ(shape_of("layers.1.moe.experts_in"), (Shape{5, 2 * 4, 6}));
  EXPECT_EQ(shape_of("layers.1.moe.shared.out"), (Shape{6, 4}));
  EXPECT_EQ(shape_of("layers.2.mlp.in"), (Shape{2 * 7, 6}));
}

TEST(Spec, LayersOfASinglePartHaveItsWeightsAlone) {
  ModelConfig config = base_model();
  config.layers = "dense, moe:4, gqa";
  config.moe.num_shared_experts = 0;
  const ModelSpec model = describe_model(config);
  EXPECT_EQ(names_of(model, 0), (std::vector<std::string>{"layers.0.mlp_norm", "layers.0.mlp.in", "layers.0.mlp.out"}));
  EXPECT_EQ(names_of(model, 1),
            (std::vector<std::string>{"layers.1.mlp_norm", "layers.1.moe.router", "layers.1.moe.router_bias",
                                      "layers.1.moe.experts_in", "layers.1.moe.experts_out"}));
  EXPECT_EQ(names_of(model, 2),
            (std::vector<std::string>{"layers.2.attention_norm", "layers.2.attention.q", "layers.2.attention.k",
                                      "layers.2.attention.v", "layers.2.attention.out", "layers.2.attention.q_norm",
                                      "layers.2.attention.k_norm"}));
  // Each adds to the stream once: three times, not six.
  EXPECT_DOUBLE_EQ(std::ranges::find(model.weights, "layers.0.mlp.out", &WeightSpec::name)->init_std,
                   0.5 / std::sqrt(3.0));
}

TEST(Spec, AttentionWithoutRotationIsTheSameOtherwise) {
  ModelConfig config = base_model();
  config.layers = "gqa, gqa_nope, dense";
  const ModelSpec model = describe_model(config);
  const PartTraits &rotated = model.layers[0].parts[0].traits, &plain = model.layers[1].parts[0].traits;
  EXPECT_EQ(rotated.rope_dim, 4);
  EXPECT_EQ(plain.rope_dim, 0);
  EXPECT_EQ(plain.flops_per_position, rotated.flops_per_position);
  EXPECT_EQ(plain.state.widths, rotated.state.widths);
  EXPECT_EQ(names_of(model, 0).size(), names_of(model, 1).size());
}

TEST(Spec, OutputsAreScaledByTheNumberOfLayers) {
  ModelConfig config = base_model();
  const auto std_of = [&](const std::string& name) {
    const ModelSpec model = describe_model(config);
    return std::ranges::find(model.weights, name, &WeightSpec::name)->init_std;
  };
  EXPECT_DOUBLE_EQ(std_of("layers.0.mlp.in"), 0.5);
  EXPECT_DOUBLE_EQ(std_of("layers.0.mlp.out"), 0.5 / std::sqrt(4.0));
  config.layers = "8 x mla/moe";
  EXPECT_DOUBLE_EQ(std_of("layers.7.moe.experts_out"), 0.5 / std::sqrt(16.0));
  config.init.depth_scaled_outputs = false;
  EXPECT_DOUBLE_EQ(std_of("layers.7.moe.experts_out"), 0.5);
}

}  // namespace
}  // namespace nmoe::test
