// Grouped-query attention (arXiv 2305.13245), with RoPE on all of a head or its first values, or without (NoPE, arXiv
// 2305.19466), optional biases of its projections, optional sinks, optional RMSNorm of queries and keys, per head or
// over all heads, and optional gates of what heads give (arXiv 2505.06708, elementwise).
//
// T tokens, D model width, H query heads, G key/value heads, C head size. Queries, keys, values and gates are columns
// of one product: their rows lie apart. The cache holds normed and rotated keys [slots, capacity, G * C] and values of
// the same shape.
#pragma once

#include <optional>

#include "model/parts/linear.h"
#include "model/parts/norm.h"
#include "model/parts/part.h"
#include "model/spec/part.h"

namespace nmoe {

class GroupedQueryAttention final : public Part {
 public:
  GroupedQueryAttention(const LayerPart& part, WeightSet& weights);

  Application forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const override;
  void backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const override;
  bool takes_codes(const Ops& ops) const override { return out_.weight().copies.takes_codes(ops); }
  void cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor residual,
                      Tensor y) const override;

 private:
  struct Kept {
    Tensor q;      // [T, H, C], normed and rotated
    Tensor k;      // [T, G, C], normed and rotated
    Tensor v;      // [T, G, C]
    Tensor out;    // [T, H, C]
    Tensor lse;    // [B, H, S]
    Tensor gate;   // [T, H * C], where heads have one
    Tensor gated;  // [T, H * C], out behind it, or out
    Norm::Kept q_norm, k_norm;
  };
  double softmax_scale() const;
  Tensor sinks() const { return sinks_ != nullptr ? sinks_->value : Tensor(); }
  // Queries or keys [T, heads, C], or their gradients, as the vectors that norms go over: these, or [T, heads * C].
  Tensor vectors_of_norm(Tensor heads) const;
  // Of heads [T, heads, C].
  Rope rotation(const Pass& pass, Tensor heads) const;
  // What heads give altogether, [T, (H + G + G) * C], and [T, (H + G + G + H) * C] with gates.
  int64_t projected_width() const;
  // y = residual + what comes out for kept.out, by way of kept.gated.
  void project_out(const Pass& pass, Kept& kept, Tensor residual, Tensor y) const;
  // All but out, lse and gated.
  Kept project(const Pass& pass, const Rows& x) const;

  const ModelConfig& config_;
  int64_t layer_;
  int64_t window_;
  bool rotates_;
  JoinedLinear qkv_;  // [H * C + G * C + G * C, D], and H * C rows more with gates
  Linear out_;        // [D, H * C]
  std::optional<Bias> qkv_bias_;
  std::optional<Bias> out_bias_;
  Weight* sinks_ = nullptr;  // [H], where there are any
  std::optional<Norm> q_norm_;
  std::optional<Norm> k_norm_;
};

}  // namespace nmoe
