#include "model/intermediate.h"

#include <string_view>

#include "base/error.h"

namespace nmoe {
namespace {

std::string_view name_of(Intermediate what) {
  switch (what) {
    case Intermediate::kEmbeddingOut:
      return "embedding_out";
    case Intermediate::kAttentionQuery:
      return "attention.q";
    case Intermediate::kAttentionKey:
      return "attention.k";
    case Intermediate::kAttentionValue:
      return "attention.v";
    case Intermediate::kAttentionHeads:
      return "attention.heads";
    case Intermediate::kMixerOut:
      return "attention_out";
    case Intermediate::kRouterLogits:
      return "moe.logits";
    case Intermediate::kExpertChoices:
      return "moe.choices";
    case Intermediate::kGateWeights:
      return "moe.gate_weights";
    case Intermediate::kExpertHidden:
      return "moe.expert_hidden";
    case Intermediate::kSharedHidden:
      return "moe.shared.hidden";
    case Intermediate::kMlpHidden:
      return "mlp.hidden";
    case Intermediate::kFeedForwardOut:
      return "mlp_out";
    case Intermediate::kPredictionIn:
      return "prediction_in";
    case Intermediate::kFinalNormOut:
      return "final_norm_out";
    case Intermediate::kLosses:
      return "losses";
    case Intermediate::kFeedForwardGradient:
      return "mlp_gradient";
    case Intermediate::kMixerGradient:
      return "attention_gradient";
  }
  NMOE_CHECK(false, "no intermediate value {}", static_cast<int>(what));
}

}  // namespace

std::string intermediate_name(Intermediate what, int64_t layer) {
  return layer == kNoLayer ? std::string(name_of(what)) : fmt::format("layers.{}.{}", layer, name_of(what));
}

}  // namespace nmoe
