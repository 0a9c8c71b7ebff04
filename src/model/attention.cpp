#include "model/attention.h"

#include <cmath>

#include "model/gqa.h"
#include "model/mla.h"

namespace nmoe {

std::unique_ptr<Attention> make_attention(const ModelConfig& config, ParameterSet& parameters, const std::string& name,
                                          int64_t window) {
  if (config.attention == AttentionKind::kMla) {
    return std::make_unique<LatentAttention>(config, parameters, name, window);
  }
  return std::make_unique<GroupedQueryAttention>(config, parameters, name, window);
}

int64_t rope_dim(const ModelConfig& config) {
  return config.attention == AttentionKind::kMla ? config.mla.qk_rope_head_dim : config.gqa.head_dim;
}

Parameter matrix_parameter(const ModelConfig& config, const std::string& name, int64_t out, int64_t in) {
  return {.name = name, .shape = {out, in}, .group = ParameterGroup::kMatrices, .init_std = config.init.std};
}

Parameter output_parameter(const ModelConfig& config, const std::string& name, int64_t out, int64_t in) {
  Parameter parameter = matrix_parameter(config, name, out, in);
  if (config.init.depth_scaled_outputs) {
    parameter.init_std /= std::sqrt(2.0 * static_cast<double>(config.num_layers));
  }
  return parameter;
}

}  // namespace nmoe
