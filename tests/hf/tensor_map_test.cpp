#include "hf/tensor_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"

namespace nmoe {
namespace {

// Which row of which tensor each row of a parameter is ("tensor row"); of a vector, which element.
std::vector<std::string> rows_of(const std::vector<MappedParameter>& parameters, const std::string& name) {
  const auto parameter = std::ranges::find(parameters, name, &MappedParameter::name);
  NMOE_CHECK(parameter != parameters.end(), "no parameter {}", name);
  const int64_t width = parameter->shape.rank() == 1 ? 1 : parameter->shape[-1];
  std::vector<std::string> rows;
  for (const TensorPiece& piece : parameter->pieces) {
    EXPECT_EQ(piece.parameter_offset, std::ssize(rows) * width);
    EXPECT_EQ(piece.tensor_offset % width, 0);
    for (int64_t row = 0; row < piece.num_elements / width; ++row) {
      const std::string tensor = piece.tensor.substr(piece.tensor.find("self_attn.") + 10);
      rows.push_back(fmt::format("{} {}", tensor.substr(0, tensor.find(".weight")), piece.tensor_offset / width + row));
    }
  }
  EXPECT_EQ(std::ssize(rows) * width, parameter->shape.num_elements());
  return rows;
}

ModelConfig small(PartKind attention, RopeLayout layout) {
  ModelConfig config;
  config.vocab_size = 8;
  config.dim = 8;
  config.num_layers = 1;
  config.num_heads = 2;
  config.attention = attention;
  config.moe.num_experts = 2;
  config.rope.layout = layout;
  config.gqa = {.num_kv_heads = 1, .head_dim = 6, .qk_norm = true};
  config.mla.kv_lora_rank = 3;
  config.mla.qk_nope_head_dim = 1;
  config.mla.qk_rope_head_dim = 4;
  return config;
}

std::vector<std::string> numbered(const std::string& tensor, const std::vector<int>& rows) {
  std::vector<std::string> named;
  for (const int row : rows) named.push_back(fmt::format("{} {}", tensor, row));
  return named;
}

// Of a head of 6 values the first 4 rotate: GLM pairs row p with row p + 2, and so are biases; values keep their order.
TEST(TensorMap, RowsOfAPartThatRotatesAndTheirBiasesAreReordered) {
  ModelConfig config = small(PartKind::kGqa, RopeLayout::kInterleaved);
  config.gqa.rotary_dim = 4;
  config.gqa.bias = AttentionBias::kQkv;
  const auto parameters = map_parameters(config, ModelType::kGlm4Moe);
  const std::string layer = "layers.0.attention.";
  EXPECT_EQ(rows_of(parameters, layer + "k"), numbered("k_proj", {0, 2, 1, 3, 4, 5}));
  EXPECT_EQ(rows_of(parameters, layer + "q_norm"), numbered("q_norm", {0, 2, 1, 3, 4, 5}));
  std::vector<std::string> biases = numbered("q_proj.bias", {0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11});
  for (const auto& [tensor, rows] : {std::pair<std::string, std::vector<int>>("k_proj.bias", {0, 2, 1, 3, 4, 5}),
                                     {"v_proj.bias", {0, 1, 2, 3, 4, 5}}}) {
    for (const std::string& row : numbered(tensor, rows)) biases.push_back(row);
  }
  EXPECT_EQ(rows_of(parameters, layer + "qkv_bias"), biases);
}

// A norm over all heads has each head's rows.
TEST(TensorMap, NormsOverAllHeadsAreReorderedByHead) {
  ModelConfig config = small(PartKind::kGqa, RopeLayout::kInterleaved);
  config.gqa.qk_norm_over = QkNormOver::kAllHeads;
  const auto parameters = map_parameters(config, ModelType::kOlmoe);
  EXPECT_EQ(rows_of(parameters, "layers.0.attention.q_norm"),
            numbered("q_norm", {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}));
}

// What is called otherwise, or has another shape.
TEST(TensorMap, ExpertsHaveTheNamesOfTheirType) {
  struct Names {
    ModelType type;
    std::vector<std::string> tensors;  // some of a layer's
  };
  const std::vector<Names> all = {
      {ModelType::kMixtral,
       {"block_sparse_moe.gate.weight [2, 8]", "block_sparse_moe.experts.1.w1.weight [4, 8]",
        "block_sparse_moe.experts.1.w3.weight [4, 8]", "block_sparse_moe.experts.1.w2.weight [8, 4]"}},
      {ModelType::kMinimaxM2, {"block_sparse_moe.e_score_correction_bias [2]", "block_sparse_moe.gate.weight [2, 8]"}},
      {ModelType::kErnie45Moe, {"mlp.moe_statics.e_score_correction_bias [1, 2]"}},
      {ModelType::kQwen2Moe,
       {"mlp.shared_expert.gate_proj.weight [6, 8]", "mlp.shared_expert.down_proj.weight [8, 6]",
        "mlp.shared_expert_gate.weight [1, 8]"}},
      {ModelType::kGptOss,
       {"mlp.router.weight [2, 8]", "mlp.router.bias [2]", "mlp.experts.gate_up_proj [2, 8, 8]",
        "mlp.experts.gate_up_proj_bias [2, 8]", "mlp.experts.down_proj [2, 4, 8]", "mlp.experts.down_proj_bias [2, 8]",
        "self_attn.sinks [2]"}},
      {ModelType::kDots1, {"mlp.gate.e_score_correction_bias [2]", "mlp.shared_experts.up_proj.weight [6, 8]"}}};
  for (const auto& [type, tensors] : all) {
    ModelConfig config = small(PartKind::kGqa, RopeLayout::kHalfSplit);
    config.num_dense_layers = 0;
    config.moe.expert_dim = 4;
    config.moe.shared_dim = 6;
    config.moe.shared_gate = type == ModelType::kQwen2Moe;
    config.gqa.sinks = config.moe.biases = type == ModelType::kGptOss;
    if (type == ModelType::kMixtral || type == ModelType::kMinimaxM2 || config.moe.biases)
      config.moe.num_shared_experts = 0;
    std::set<std::string> mapped;
    for (const MappedParameter& parameter : map_parameters(config, type)) {
      for (const TensorPiece& piece : parameter.pieces) {
        mapped.insert(fmt::format("{} {}", piece.tensor, piece.tensor_shape));
      }
    }
    for (const std::string& tensor : tensors) {
      EXPECT_TRUE(mapped.contains("model.layers.0." + tensor)) << model_type_name(type) << " " << tensor;
    }
  }
}

// The sections of Mamba-2's one projection, and its convolution with a dimension more.
TEST(TensorMap, SectionsOfMamba2AreRowsOfOneProjection) {
  ModelConfig config = small(PartKind::kGqa, RopeLayout::kHalfSplit);
  config.layers = "mamba2, moe, gqa_nope";
  config.activation = Activation::kReluSquared;
  config.mamba2 = {.num_heads = 2, .head_dim = 3, .state_dim = 2, .num_groups = 1};
  const auto parameters = map_parameters(config, ModelType::kNemotronH);
  const std::string layer = "layers.0.mamba2.";
  for (const auto& [section, first, rows] :
       {std::tuple("z", 0, 6), {"x", 6, 6}, {"b", 12, 2}, {"c", 14, 2}, {"dt", 16, 2}}) {
    const auto parameter = std::ranges::find(parameters, layer + section, &MappedParameter::name);
    ASSERT_NE(parameter, parameters.end()) << section;
    const TensorPiece& piece = parameter->pieces.front();
    EXPECT_EQ(piece.tensor, "backbone.layers.0.mixer.in_proj.weight");
    EXPECT_EQ(piece.tensor_shape, (Shape{18, 8}));
    EXPECT_EQ(piece.tensor_offset, first * 8) << section;
    EXPECT_EQ(piece.num_elements, rows * 8) << section;
  }
  const auto conv = std::ranges::find(parameters, layer + "conv", &MappedParameter::name);
  EXPECT_EQ(conv->pieces.front().tensor_shape, (Shape{10, 1, 4}));
  const auto up = std::ranges::find(parameters, "layers.1.moe.experts_in", &MappedParameter::name);
  EXPECT_EQ(up->pieces.size(), 2u) << "no gates";
  EXPECT_EQ(up->pieces.back().tensor, "backbone.layers.1.mixer.experts.1.up_proj.weight");
  EXPECT_EQ(fused_expert_name(up->pieces.back().tensor), "model.layers.1.mixer.experts.up_proj");
}

// Qwen3 pairs row p with row p + 3; here rows 2p and 2p + 1 are a pair.
TEST(TensorMap, InterleavedPairsAreSplitWhereTheTypeSplitsThem) {
  const auto parameters = map_parameters(small(PartKind::kGqa, RopeLayout::kInterleaved), ModelType::kQwen3Moe);
  const std::string layer = "layers.0.attention.";
  EXPECT_EQ(rows_of(parameters, layer + "q"), numbered("q_proj", {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}));
  EXPECT_EQ(rows_of(parameters, layer + "k"), numbered("k_proj", {0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(rows_of(parameters, layer + "v"), numbered("v_proj", {0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(rows_of(parameters, layer + "q_norm"), numbered("q_norm", {0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(rows_of(parameters, layer + "k_norm"), numbered("k_norm", {0, 3, 1, 4, 2, 5}));
  const auto split = map_parameters(small(PartKind::kGqa, RopeLayout::kHalfSplit), ModelType::kQwen3Moe);
  EXPECT_EQ(rows_of(split, layer + "k"), numbered("k_proj", {0, 1, 2, 3, 4, 5}));
}

// DeepSeek-V2 interleaves; the rows in front of a head's rotated ones stay where they are.
TEST(TensorMap, SplitPairsAreInterleavedWhereTheTypeInterleavesThem) {
  const auto parameters = map_parameters(small(PartKind::kMla, RopeLayout::kHalfSplit), ModelType::kDeepseekV2);
  const std::string layer = "layers.0.attention.";
  EXPECT_EQ(rows_of(parameters, layer + "q"), numbered("q_proj", {0, 1, 3, 2, 4, 5, 6, 8, 7, 9}));
  EXPECT_EQ(rows_of(parameters, layer + "kv_down"), numbered("kv_a_proj_with_mqa", {0, 1, 2}));
  EXPECT_EQ(rows_of(parameters, layer + "k_rope"), numbered("kv_a_proj_with_mqa", {3, 5, 4, 6}));
  // DeepSeek-V3's config.json says which layout it is.
  const auto said = map_parameters(small(PartKind::kMla, RopeLayout::kHalfSplit), ModelType::kDeepseekV3);
  EXPECT_EQ(rows_of(said, layer + "k_rope"), numbered("kv_a_proj_with_mqa", {3, 4, 5, 6}));
}

}  // namespace
}  // namespace nmoe
