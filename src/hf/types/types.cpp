#include "hf/types/types.h"

#include "config/schema.h"

namespace nmoe {

void Fit::require(bool holds, std::string_view key, std::string_view has) {
  if (holds) return;
  std::string value;
  for (const Field& field : describe(config_)) {
    if (field.key == key) value = to_toml(field.get());
  }
  NMOE_CHECK(!value.empty(), "unknown key {}", key);
  obstacles_.push_back(fmt::format("{} = {}: {} has {}", key, value, type_, has));
}

LayerFreedom layer_freedom(ModelType type) {
  switch (type) {
    case ModelType::kQwen2Moe:
      return {.dense = true, .windows = LayerFreedom::Windows::kAny};
    case ModelType::kQwen3Moe:
      return {.dense = true, .windows = LayerFreedom::Windows::kAllLayers};
    case ModelType::kMixtral:
      return {.windows = LayerFreedom::Windows::kAllLayers};
    case ModelType::kGlm4MoeLite:
    case ModelType::kErnie45Moe:
      return {.dense = true};
    case ModelType::kQwen3:
    case ModelType::kDots1:
    case ModelType::kGptOss:
      return {.windows = LayerFreedom::Windows::kAny};
    default:
      return {};
  }
}

const TypeText& text_of(ModelType type) {
  static const TypeText deepseek = deepseek_text(), deepseek_v2 = deepseek_v2_text(), dense = dense_text(),
                        qwen_moe = qwen_moe_text(), mixtral = mixtral_text(), minimax = minimax_text(),
                        glm4_moe = glm4_moe_text(), ernie = ernie_text(), gpt_oss = gpt_oss_text(),
                        nemotron = nemotron_text();
  switch (type) {
    case ModelType::kDeepseekV2:
      return deepseek_v2;
    case ModelType::kDeepseekV3:
    case ModelType::kKimiK2:
    case ModelType::kGlm4MoeLite:
      return deepseek;
    case ModelType::kLlama:
    case ModelType::kQwen3:
      return dense;
    case ModelType::kQwen2Moe:
    case ModelType::kQwen3Moe:
      return qwen_moe;
    case ModelType::kMixtral:
    case ModelType::kOlmoe:
      return mixtral;
    case ModelType::kMinimaxM2:
      return minimax;
    case ModelType::kGlm4Moe:
    case ModelType::kDots1:
      return glm4_moe;
    case ModelType::kErnie45Moe:
      return ernie;
    case ModelType::kGptOss:
      return gpt_oss;
    case ModelType::kNemotronH:
      return nemotron;
  }
  NMOE_CHECK(false, "model type {}", static_cast<int>(type));
}

}  // namespace nmoe
