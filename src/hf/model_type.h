// The kinds of models that Hugging Face's transformers and nmoe share.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "config/config.h"

namespace nmoe {

// The architectures of transformers that nmoe shares.
enum class ModelType {
  kDeepseekV2,  // MLA; softmax scores without bias
  kDeepseekV3,  // MLA; sigmoid scores with a selection bias
  kKimiK2,      // DeepSeek-V3's under a name of its own
  kQwen3Moe,    // GQA with norms of queries and keys; softmax scores, no shared experts
};
std::string_view model_type_name(ModelType type);  // "deepseek_v3"

constexpr std::array<ModelType, 4> kModelTypes = {ModelType::kDeepseekV2, ModelType::kDeepseekV3, ModelType::kKimiK2,
                                                  ModelType::kQwen3Moe};

// What stands under "architectures".
std::string_view architecture_name(ModelType type);

// The layout of rotated pairs that all models of this type have; nothing where config.json says which.
std::optional<RopeLayout> only_rope_layout(ModelType type);

}  // namespace nmoe
