#include "hf/model_type.h"

#include "base/error.h"

namespace nmoe {

std::string_view model_type_name(ModelType type) {
  switch (type) {
    case ModelType::kDeepseekV2:
      return "deepseek_v2";
    case ModelType::kDeepseekV3:
      return "deepseek_v3";
    case ModelType::kKimiK2:
      return "kimi_k2";
    case ModelType::kQwen3Moe:
      return "qwen3_moe";
  }
  NMOE_CHECK(false, "model type {}", static_cast<int>(type));
}

std::string_view architecture_name(ModelType type) {
  switch (type) {
    case ModelType::kDeepseekV2:
      return "DeepseekV2ForCausalLM";
    case ModelType::kDeepseekV3:
    case ModelType::kKimiK2:
      return "DeepseekV3ForCausalLM";
    case ModelType::kQwen3Moe:
      return "Qwen3MoeForCausalLM";
  }
  NMOE_CHECK(false, "model type {}", static_cast<int>(type));
}

std::optional<RopeLayout> only_rope_layout(ModelType type) {
  switch (type) {
    case ModelType::kDeepseekV2:
      return RopeLayout::kInterleaved;
    case ModelType::kQwen3Moe:
      return RopeLayout::kHalfSplit;
    case ModelType::kDeepseekV3:
    case ModelType::kKimiK2:
      return std::nullopt;
  }
  NMOE_CHECK(false, "model type {}", static_cast<int>(type));
}

}  // namespace nmoe
