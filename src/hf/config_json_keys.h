// What reading and writing of config.json must agree on. Private to the two.
#pragma once

#include <string_view>

#include "hf/model_type.h"
#include "hf/types/keys.h"

namespace nmoe {

// transformers and DeepSeek's code give the norms of latents their class's default epsilon, whatever rms_norm_eps.
constexpr double kHfLatentNormEps = 1e-6;

constexpr KeyNames kDtypeKey = {"torch_dtype", "dtype"};
constexpr KeyNames kNextnKey = {"num_nextn_predict_layers", "num_mtp_layers"};
// Of nemotron_h: as it is called, and as it was before.
constexpr KeyNames kNemotronKeys[] = {{"hybrid_override_pattern", "layers_block_type"},
                                      {"hybrid_override_pattern", "layer_types"},
                                      {"layer_norm_epsilon", "norm_eps"},
                                      {"head_dim", "attention_head_dim"},
                                      {"n_groups", "mamba_n_groups"},
                                      {"conv_kernel", "mamba_d_conv"},
                                      {"chunk_size", "mamba_chunk_size"},
                                      {"time_step_min", "mamba_dt_min"},
                                      {"time_step_max", "mamba_dt_max"},
                                      {"time_step_limit", "mamba_dt_limit"},
                                      {"time_step_floor", "mamba_dt_init_floor"},
                                      {"use_conv_bias", "mamba_conv_bias"},
                                      {"expand", "mamba_expand"},
                                      {"mtp_hybrid_override_pattern", "mtp_layers_block_type"}};
constexpr KeyNames routed_experts_key(ModelType type) {
  switch (type) {
    case ModelType::kDeepseekV2:
      return {"n_routed_experts", "num_experts"};
    case ModelType::kQwen2Moe:
    case ModelType::kQwen3Moe:
    case ModelType::kOlmoe:
      return {"num_experts", "num_local_experts"};
    case ModelType::kMixtral:
    case ModelType::kMinimaxM2:
    case ModelType::kGptOss:
      return {"num_local_experts", "num_experts"};
    case ModelType::kErnie45Moe:
      return {"moe_num_experts", "num_experts"};
    default:
      return {"n_routed_experts", "num_local_experts"};
  }
}

}  // namespace nmoe
