// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values are expanded from one
// small latent vector per token; a separate key part shared by all heads carries the position. Without rotation
// (PartSpec::rotates), as Kimi Linear has it, that part is as it is projected.
//
// T tokens, D model width, H heads, N nope size, P rope size (query/key head size N + P), U value head size, Rq and Rkv
// latent widths. One product projects a block's input to queries, key/value latent and key part; its query columns, Q,
// are those of all heads or of the query latent. What generation caches of a token (GenerationArithmetic): for all
// heads together its normed latent followed by the rotated key part, [slots, capacity, Rkv + P], which is never
// expanded (mla_cached_attention); or, as training computes, heads' own keys and values, [slots, capacity, H * (N +
// U)], and the rotated key part, [slots, capacity, P].
#pragma once

#include <optional>

#include "model/parts/linear.h"
#include "model/parts/norm.h"
#include "model/parts/part.h"
#include "model/spec/part.h"

namespace nmoe {

class LatentAttention final : public Part {
 public:
  LatentAttention(const LayerPart& part, WeightSet& weights);

  Application forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const override;
  void backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const override;
  bool takes_codes(const Ops& ops) const override { return out_.weight().copies.takes_codes(ops); }
  void cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor residual,
                      Tensor y) const override;

 private:
  // Queries through a latent of their own (q_lora_rank > 0).
  struct LowRankQuery {
    Norm norm;
    Linear up;  // [H * (N + P), Rq]
  };
  // Columns of `all`.
  struct Projections {
    Tensor all;        // [T, Q + Rkv + P]
    Tensor q;          // [T, Q]
    Tensor kv_latent;  // [T, Rkv], before its norm
    Tensor k_rope;     // [T, P]
  };
  struct Kept {
    Tensor q_latent;   // [T, Rq], normed; undefined without a query latent
    Tensor kv_latent;  // [T, Rkv], normed
    Tensor q;          // [T, H, N + P], rotated
    Tensor kv;         // [T, H, N + U]: of each head, its own part of the key and the value
    Tensor k_rope;     // [T, P], rotated: the key part that heads share
    Tensor out;        // [T, H, U]
    Tensor lse;        // [B, H, S]
    Norm::Kept q_norm, kv_norm;
  };
  double softmax_scale() const;
  Projections push_projections(const Pass& pass, int64_t num_tokens) const;
  // [T, H, N + P], before their rotation; fills q_latent and its norm.
  Tensor queries(const Pass& pass, const Projections& raw, Kept& kept) const;
  // All but kv, out and lse.
  Kept project(const Pass& pass, const Rows& x) const;
  // Makes kv.
  void expand(const Pass& pass, Kept& kept) const;
  // Both forms of cached_forward: the states of x's rows, and their attention [T, H, U].
  void attend_expanded(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor out) const;
  void attend_in_latent_space(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor out) const;
  // The rotation of k_rope [T, P], as one head, and of q [T, H, N + P].
  Rope rotation_of_shared_key(const Pass& pass, Tensor k_rope) const;
  Rope rotation_of_queries(const Pass& pass, Tensor q) const;

  const ModelConfig& config_;
  int64_t layer_;
  int64_t window_;
  bool rotates_;
  JoinedLinear projections_;  // [Q + Rkv + P, D]
  std::optional<LowRankQuery> q_low_rank_;
  Norm kv_norm_;
  Linear kv_up_;  // [H * (N + U), Rkv]
  Linear out_;    // [D, H * U]
};

}  // namespace nmoe
