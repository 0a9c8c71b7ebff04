#include "hf/model_type.h"

#include <algorithm>

#include "base/error.h"

namespace nmoe {
namespace {

struct TypeNames {
  ModelType type;
  std::string_view name;
  std::string_view architecture;
  std::optional<RopeLayout> layout;
};
constexpr std::array<TypeNames, kModelTypes.size()> kTypes = {{
    {ModelType::kDeepseekV2, "deepseek_v2", "DeepseekV2ForCausalLM", RopeLayout::kInterleaved},
    {ModelType::kDeepseekV3, "deepseek_v3", "DeepseekV3ForCausalLM", std::nullopt},
    {ModelType::kKimiK2, "kimi_k2", "DeepseekV3ForCausalLM", std::nullopt},
    {ModelType::kGlm4MoeLite, "glm4_moe_lite", "Glm4MoeLiteForCausalLM", std::nullopt},
    {ModelType::kLlama, "llama", "LlamaForCausalLM", RopeLayout::kHalfSplit},
    {ModelType::kQwen3, "qwen3", "Qwen3ForCausalLM", RopeLayout::kHalfSplit},
    {ModelType::kQwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM", RopeLayout::kHalfSplit},
    {ModelType::kQwen2Moe, "qwen2_moe", "Qwen2MoeForCausalLM", RopeLayout::kHalfSplit},
    {ModelType::kMixtral, "mixtral", "MixtralForCausalLM", RopeLayout::kHalfSplit},
    {ModelType::kOlmoe, "olmoe", "OlmoeForCausalLM", RopeLayout::kHalfSplit},
    {ModelType::kMinimaxM2, "minimax_m2", "MiniMaxM2ForCausalLM", RopeLayout::kHalfSplit},
    {ModelType::kGlm4Moe, "glm4_moe", "Glm4MoeForCausalLM", RopeLayout::kHalfSplit},
    {ModelType::kDots1, "dots1", "Dots1ForCausalLM", RopeLayout::kHalfSplit},
    {ModelType::kErnie45Moe, "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", RopeLayout::kInterleaved},
    {ModelType::kGptOss, "gpt_oss", "GptOssForCausalLM", RopeLayout::kHalfSplit},
    {ModelType::kNemotronH, "nemotron_h", "NemotronHForCausalLM", std::nullopt},
}};

const TypeNames& names_of(ModelType type) {
  const auto* const found = std::ranges::find(kTypes, type, &TypeNames::type);
  NMOE_CHECK(found != kTypes.end(), "model type {}", static_cast<int>(type));
  return *found;
}

}  // namespace

std::string_view model_type_name(ModelType type) { return names_of(type).name; }

std::string model_type_names() {
  std::string names;
  for (size_t i = 0; i < kTypes.size(); ++i) {
    names += fmt::format("{}{}", i == 0 ? "" : i + 1 < kTypes.size() ? ", " : " and ", kTypes[i].name);
  }
  return names;
}

bool is_hybrid(ModelType type) { return type == ModelType::kNemotronH; }

std::string_view architecture_name(ModelType type) { return names_of(type).architecture; }

std::optional<RopeLayout> only_rope_layout(ModelType type) { return names_of(type).layout; }

ExpertNames expert_names(ModelType type) {
  constexpr std::string_view kBias = "gate.e_score_correction_bias";
  constexpr ExpertNames kMixtral = {.block = "block_sparse_moe.", .gate = "w1", .up = "w3", .down = "w2", .shared = ""};
  switch (type) {
    case ModelType::kDeepseekV3:
    case ModelType::kKimiK2:
    case ModelType::kGlm4MoeLite:
    case ModelType::kGlm4Moe:
    case ModelType::kDots1:
      return {.selection_bias = kBias};
    case ModelType::kErnie45Moe:
      return {.selection_bias = "moe_statics.e_score_correction_bias", .bias_is_matrix = true};
    case ModelType::kQwen2Moe:
      return {.shared = "shared_expert.", .shared_gate = "shared_expert_gate.weight"};
    case ModelType::kMixtral:
      return kMixtral;
    case ModelType::kMinimaxM2: {
      ExpertNames names = kMixtral;
      names.selection_bias = "e_score_correction_bias";
      return names;
    }
    case ModelType::kGptOss:
      return {.router = "router.weight", .in_one_tensor = true};
    case ModelType::kNemotronH:
      return {.block = "mixer.", .gate = "", .selection_bias = kBias};
    default:
      return {};
  }
}

}  // namespace nmoe
