// The intermediate values of a forward and backward pass that can be inspected during the pass.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "config/layers.h"
#include "tensor/tensor.h"

namespace nmoe {

// In the order of execution. Rows of the mixer's may lie apart (tensor/tensor.h).
enum class Intermediate {
  kEmbeddingOut,         // [T, D]
  kAttentionQuery,       // [T, H, Dk], as passed to attention: normed and rotated
  kAttentionKey,         // [T, G, Dk]; of MLA the part that heads share, [T, rope]
  kAttentionValue,       // [T, G, Dv]; of MLA with the heads' own parts of keys, [T, H, nope + Dv]
  kAttentionHeads,       // [T, H, Dv]
  kMixerOut,             // [T, D], with the residual stream
  kRouterLogits,         // [T, E] stat
  kExpertChoices,        // [T, K] i32
  kGateWeights,          // [T, K] stat
  kExpertHidden,         // [R, F], times the gate weights
  kSharedHidden,         // [T, F] of the shared experts
  kMlpHidden,            // [T, F] of a dense MLP
  kFeedForwardOut,       // [T, D], with the residual stream
  kPredictionIn,         // [T, D] what the layers of a module of multi-token prediction get
  kFinalNormOut,         // [T, D]; of a module with its last layer's number, as its losses
  kLosses,               // [T] stat
  kFeedForwardGradient,  // [T, D] of the feed-forward part's input
  kMixerGradient,        // [T, D] of the mixer's input
};

// "layers.3.moe.logits"; "losses" with kNoLayer.
std::string intermediate_name(Intermediate what, int64_t layer);

// Called with values in the order of execution, each before it is overwritten: what it enqueues can read them.
using Inspector = std::function<void(Intermediate what, int64_t layer, Tensor value, Tensor num_rows)>;
// Called where those values are made. Unlike an Inspector it makes nobody keep or write them: a step whose phases are
// timed does the work of any other.
using Marker = std::function<void(Intermediate what, int64_t layer)>;

}  // namespace nmoe
