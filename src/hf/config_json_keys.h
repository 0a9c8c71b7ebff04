// What reading and writing of config.json must agree on. Private to the two.
#pragma once

#include <string_view>

#include "hf/model_type.h"

namespace nmoe {

// transformers and DeepSeek's code give the norms of latents their class's default epsilon, whatever rms_norm_eps.
constexpr double kHfLatentNormEps = 1e-6;

// A key and the other name under which some versions of transformers keep it.
struct KeyNames {
  std::string_view name;
  std::string_view alias = {};
};
constexpr KeyNames kDtypeKey = {"torch_dtype", "dtype"};
constexpr KeyNames kNextnKey = {"num_nextn_predict_layers", "num_mtp_layers"};
constexpr KeyNames routed_experts_key(ModelType type) {
  if (type == ModelType::kQwen3Moe) return {"num_experts", "num_local_experts"};
  return {"n_routed_experts", type == ModelType::kDeepseekV2 ? "num_experts" : "num_local_experts"};
}

}  // namespace nmoe
