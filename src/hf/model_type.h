// The kinds of models that Hugging Face's transformers and nmoe share.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "config/config.h"

namespace nmoe {

// The architectures of transformers that nmoe shares.
enum class ModelType {
  kDeepseekV2,  // MLA; softmax scores without bias
  kDeepseekV3,  // MLA; sigmoid scores with a selection bias
  kKimiK2,      // DeepSeek-V3's under names of their own
  kGlm4MoeLite,
  kLlama,       // dense; GQA
  kQwen3,       // dense; GQA with norms of queries and keys
  kQwen3Moe,    // the same with experts: softmax scores, no shared ones
  kQwen2Moe,    // GQA with biases; softmax scores, gated shared experts
  kMixtral,     // GQA; softmax scores
  kOlmoe,       // GQA with norms over all heads; softmax scores
  kMinimaxM2,   // GQA with norms over all heads that rotates a part of each; sigmoid scores with a selection bias
  kGlm4Moe,     // GQA with biases that rotates a part of each head; DeepSeek-V3's experts
  kDots1,       // GQA with norms; DeepSeek-V3's experts
  kErnie45Moe,  // GQA, interleaved; softmax scores with a selection bias
  kGptOss,      // GQA with biases and sinks; softmax scores, biases of routers and experts, clamped SwiGLU
  kNemotronH,   // layers of one part each: Mamba-2, GQA without rotation, squared-ReLU experts or MLPs
};
std::string_view model_type_name(ModelType type);  // "deepseek_v3"

constexpr std::array<ModelType, 16> kModelTypes = {
    ModelType::kDeepseekV2, ModelType::kDeepseekV3, ModelType::kKimiK2,    ModelType::kGlm4MoeLite,
    ModelType::kLlama,      ModelType::kQwen3,      ModelType::kQwen3Moe,  ModelType::kQwen2Moe,
    ModelType::kMixtral,    ModelType::kOlmoe,      ModelType::kMinimaxM2, ModelType::kGlm4Moe,
    ModelType::kDots1,      ModelType::kErnie45Moe, ModelType::kGptOss,    ModelType::kNemotronH};
// "deepseek_v2, deepseek_v3, ... and ernie4_5_moe".
std::string model_type_names();

// Whether layers are of one part each, attention does not rotate, and hidden layers have no gates.
bool is_hybrid(ModelType type);

// What stands under "architectures".
std::string_view architecture_name(ModelType type);

// The layout of rotated pairs that all models of this type have; nothing where config.json says which.
std::optional<RopeLayout> only_rope_layout(ModelType type);

// What a layer's experts are called in its files.
struct ExpertNames {
  std::string_view block = "mlp.";  // what all names below begin with, within a layer
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";  // gate "": there is none
  std::string_view router = "gate.weight";
  std::string_view shared = "shared_experts.";
  std::string_view shared_gate = "";     // "": shared experts of the type have none
  std::string_view selection_bias = "";  // "": routers of the type have none
  bool bias_is_matrix = false;           // [1, E]
  // Whether all experts of a layer are one tensor [E, in, out], the transpose of what others have, in which gates and
  // what they gate alternate.
  bool in_one_tensor = false;
};
ExpertNames expert_names(ModelType type);

}  // namespace nmoe
