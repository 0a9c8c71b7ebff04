#include "model/parts/mla.h"

#include <cmath>

#include "model/parts/rope_table.h"
#include "model/spec/names.h"

namespace nmoe {

LatentAttention::LatentAttention(const LayerPart& part, WeightSet& weights)
    : config_(part.config),
      layer_(part.layer),
      window_(part.spec.window),
      rotates_(part.spec.rotates),
      projections_(weights, attention_prefix(part),
                   {config_.mla.q_lora_rank > 0 ? "q_down" : "q", "kv_down", "k_rope"}),
      kv_norm_(weights, attention_prefix(part) + "kv_norm", config_.mla.norm_eps),
      kv_up_(weights, attention_prefix(part) + "kv_up"),
      out_(weights, attention_prefix(part) + "out") {
  if (config_.mla.q_lora_rank > 0) {
    q_low_rank_.emplace(LowRankQuery{{weights, attention_prefix(part) + "q_norm", config_.mla.norm_eps},
                                     {weights, attention_prefix(part) + "q"}});
  }
}

double LatentAttention::softmax_scale() const {
  const double head_dim = static_cast<double>(config_.mla.qk_nope_head_dim + config_.mla.qk_rope_head_dim);
  // YaRN stretches rotations; what is not rotated stays as it is.
  return (rotates_ ? yarn_softmax_scale(config_.yarn) : 1.0) / std::sqrt(head_dim);
}

LatentAttention::Projections LatentAttention::push_projections(const Pass& pass, int64_t num_tokens) const {
  const MlaConfig& mla = config_.mla;
  const int64_t R = mla.kv_lora_rank, P = mla.qk_rope_head_dim;
  const int64_t Q = q_low_rank_ ? mla.q_lora_rank : config_.num_heads * (mla.qk_nope_head_dim + P);
  const Tensor all = pass.push({num_tokens, Q + R + P});
  return {
      .all = all, .q = all.columns(0, Q), .kv_latent = all.columns(Q, Q + R), .k_rope = all.columns(Q + R, Q + R + P)};
}

Rope LatentAttention::rotation_of_shared_key(const Pass& pass, Tensor k_rope) const {
  const int64_t P = config_.mla.qk_rope_head_dim;
  return pass.rotation(k_rope.reshape({k_rope.dim(0), 1, P}), P, config_.rope.layout);
}

Rope LatentAttention::rotation_of_queries(const Pass& pass, Tensor q) const {
  return pass.rotation(q, config_.mla.qk_rope_head_dim, config_.rope.layout, config_.mla.qk_nope_head_dim);
}

Tensor LatentAttention::queries(const Pass& pass, const Projections& raw, Kept& kept) const {
  const int64_t T = raw.all.dim(0), H = config_.num_heads,
                C = config_.mla.qk_nope_head_dim + config_.mla.qk_rope_head_dim;
  if (!q_low_rank_) return raw.q.reshape({T, H, C});
  kept.q_latent = pass.push({T, config_.mla.q_lora_rank});
  const Tensor q = pass.push({T, H, C});
  kept.q_norm = q_low_rank_->norm.forward(pass, raw.q, kept.q_latent);
  q_low_rank_->up.forward(pass.ops, kept.q_latent, q.reshape({T, H * C}));
  return q;
}

LatentAttention::Kept LatentAttention::project(const Pass& pass, const Rows& x) const {
  Ops& ops = pass.ops;
  const MlaConfig& mla = config_.mla;
  const int64_t T = x.tensor().dim(0);
  Kept kept;
  kept.kv_latent = pass.push({T, mla.kv_lora_rank});
  const Projections raw = push_projections(pass, T);
  projections_.forward(ops, x, raw.all);

  kept.q = queries(pass, raw, kept);
  if (rotates_) ops.rope_forward(rotation_of_queries(pass, kept.q));
  kept.kv_norm = kv_norm_.forward(pass, raw.kv_latent, kept.kv_latent);
  if (rotates_) ops.rope_forward(rotation_of_shared_key(pass, raw.k_rope));
  kept.k_rope = raw.k_rope;
  return kept;
}

void LatentAttention::expand(const Pass& pass, Kept& kept) const {
  const int64_t T = kept.q.dim(0), H = config_.num_heads, W = config_.mla.qk_nope_head_dim + config_.mla.v_head_dim;
  kept.kv = pass.push({T, H, W});
  kv_up_.forward(pass.ops, kept.kv_latent, kept.kv.reshape({T, H * W}));
  pass.capture(Intermediate::kAttentionQuery, layer_, kept.q);
  pass.capture(Intermediate::kAttentionKey, layer_, kept.k_rope);
  pass.capture(Intermediate::kAttentionValue, layer_, kept.kv);
}

Application LatentAttention::forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const {
  Ops& ops = pass.ops;
  const int64_t T = x.tensor().dim(0), H = config_.num_heads, U = config_.mla.v_head_dim;
  Kept kept = project(pass, x);
  expand(pass, kept);
  kept.out = pass.push({T, H, U});
  kept.lse = pass.push_stat({pass.batch.num_seqs, H, pass.batch.seq_len});
  if (const Batch& batch = pass.batch; batch.parents.defined()) {
    ops.mla_tree_attention({.scale = softmax_scale(),
                            .window = window_,
                            .q = kept.q,
                            .kv = kept.kv,
                            .k_rope = kept.k_rope,
                            .out = kept.out,
                            .positions = batch.positions,
                            .bounds = batch.cu_seqlens,
                            .parents = batch.parents});
  } else {
    ops.mla_attention_forward({.shape = pass.attention_shape(softmax_scale(), window_),
                               .q = kept.q,
                               .kv = kept.kv,
                               .k_rope = kept.k_rope,
                               .out = kept.out,
                               .lse = kept.lse});
  }
  pass.capture(Intermediate::kAttentionHeads, layer_, kept.out);
  out_.forward(ops, kept.out.reshape({T, H * U}), y, residual);
  return Application(kept);
}

void LatentAttention::cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots,
                                     Tensor residual, Tensor y) const {
  const int64_t T = x.dim(0), H = config_.num_heads, U = config_.mla.v_head_dim;
  const Tensor out = pass.push({T, H, U});
  if (states.by_position.size() == 2) {
    attend_expanded(pass, x, states, slots, out);
  } else {
    attend_in_latent_space(pass, x, states, slots, out);
  }
  pass.capture(Intermediate::kAttentionHeads, layer_, out);
  out_.forward(pass.ops, out.reshape({T, H * U}), y, residual);
}

void LatentAttention::attend_expanded(const Pass& pass, Tensor x, const PartStates& states, Tensor slots,
                                      Tensor out) const {
  Ops& ops = pass.ops;
  const int64_t T = x.dim(0), H = config_.num_heads, W = config_.mla.qk_nope_head_dim + config_.mla.v_head_dim;
  const Tensor positions = pass.batch.positions, all_kv = states.by_position[0], all_k_rope = states.by_position[1];
  Kept kept = project(pass, x);
  expand(pass, kept);
  for (const auto& [rows, cache] :
       {std::pair(kept.kv.reshape({T, H * W}), all_kv), std::pair(kept.k_rope, all_k_rope)}) {
    ops.cache_write({.rows = rows, .slots = slots, .positions = positions, .pages = states.pages, .cache = cache});
  }
  ops.mla_expanded_attention({.scale = softmax_scale(),
                              .window = window_,
                              .q = kept.q,
                              .slots = slots,
                              .positions = positions,
                              .pages = states.pages,
                              .kv = all_kv,
                              .k_rope = all_k_rope,
                              .out = out});
}

void LatentAttention::attend_in_latent_space(const Pass& pass, Tensor x, const PartStates& states, Tensor slots,
                                             Tensor out) const {
  const RopeTable rope = rotates_ ? pass.rope.of(config_.mla.qk_rope_head_dim) : RopeTable{};
  const Projections raw = push_projections(pass, x.dim(0));
  projections_.forward(pass.ops, x, raw.all);
  Kept kept;
  pass.ops.mla_cached_attention({.scale = softmax_scale(),
                                 .window = window_,
                                 .q = queries(pass, raw, kept),
                                 .kv_latent = raw.kv_latent,
                                 .k_rope = raw.k_rope,
                                 .gain = kv_norm_.gain().value,
                                 .eps = kv_norm_.eps(),
                                 .cos = rope.cos,
                                 .sin = rope.sin,
                                 .layout = config_.rope.layout,
                                 .slots = slots,
                                 .positions = pass.batch.positions,
                                 .pages = states.pages,
                                 .kv_up = kv_up_.weight().value,
                                 .cache = states.by_position[0],
                                 .out = out});
}

void LatentAttention::backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const {
  const auto& kept = of.as<Kept>();
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const MlaConfig& mla = config_.mla;
  const int64_t T = dy.tensor().dim(0), H = config_.num_heads, N = mla.qk_nope_head_dim, P = mla.qk_rope_head_dim,
                U = mla.v_head_dim;

  const Tensor dout = pass.push({T, H, U});
  out_.backward(ops, kept.out.reshape({T, H * U}), dy, dout.reshape({T, H * U}));

  const Projections d = push_projections(pass, T);
  const Tensor dq = q_low_rank_ ? pass.push({T, H, N + P}) : d.q.reshape({T, H, N + P});
  const Tensor dkv = pass.push({T, H, N + U});
  const Rows dkv_rows(dkv.reshape({T, H * (N + U)}), kv_up_.push_codes(pass, T, H * (N + U)));
  ops.mla_attention_backward({.shape = pass.attention_shape(softmax_scale(), window_),
                              .q = kept.q,
                              .kv = kept.kv,
                              .k_rope = kept.k_rope,
                              .out = kept.out,
                              .lse = kept.lse,
                              .dout = dout,
                              .dq = dq,
                              .dkv = dkv,
                              .dk_rope = d.k_rope,
                              .rope = rotates_ ? rotation_of_queries(pass, {}) : Rope{},
                              .dkv_codes = dkv_rows.quantised});

  // Keys and values: through the shared rotated part, and through the latent.
  if (rotates_) ops.rope_backward(rotation_of_shared_key(pass, d.k_rope));
  const Tensor dkv_latent = pass.push({T, mla.kv_lora_rank});
  kv_up_.backward(ops, kept.kv_latent, dkv_rows, dkv_latent);
  kv_norm_.backward(pass, kept.kv_norm, dkv_latent, d.kv_latent);

  // Queries.
  if (q_low_rank_) {
    const Tensor dq_latent = pass.push({T, mla.q_lora_rank});
    q_low_rank_->up.backward(ops, kept.q_latent, dq.reshape({T, H * (N + P)}), dq_latent);
    q_low_rank_->norm.backward(pass, kept.q_norm, dq_latent, d.q);
  }
  projections_.backward(ops, x, d.all, dx);
}

}  // namespace nmoe
