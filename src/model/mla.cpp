#include "model/mla.h"

#include <cmath>

#include "model/rope_table.h"

namespace nmoe {
namespace {

std::string prefix_of(const Layer& layer) { return layer.name + "attention."; }

}  // namespace

MixerSpec LatentAttention::describe(const Layer& layer, WeightList& weights) {
  const ModelConfig& config = layer.config;
  const MlaConfig& mla = config.mla;
  const int64_t D = config.dim, H = config.num_heads, N = mla.qk_nope_head_dim, P = mla.qk_rope_head_dim,
                U = mla.v_head_dim;
  const bool low_rank = mla.q_lora_rank > 0;
  const std::string name = prefix_of(layer);
  if (low_rank) {
    weights.add(weights.matrix(name + "q_down", mla.q_lora_rank, D));
    weights.add(WeightList::gain(name + "q_norm", mla.q_lora_rank));
  }
  weights.add(weights.matrix(name + "q", H * (N + P), low_rank ? mla.q_lora_rank : D));
  weights.add(weights.matrix(name + "kv_down", mla.kv_lora_rank, D));
  weights.add(WeightList::gain(name + "kv_norm", mla.kv_lora_rank));
  weights.add(weights.matrix(name + "k_rope", P, D));
  weights.add(weights.matrix(name + "kv_up", H * (N + U), mla.kv_lora_rank));
  weights.add(weights.output(name + "out", D, H * U));
  return {.flops_per_position = 6.0 * static_cast<double>(H * (N + P + U)),
          .rope_dim = P,
          .cache = {.widths = {mla.kv_lora_rank + P}}};
}

LatentAttention::LatentAttention(const Layer& layer, WeightSet& weights)
    : config_(layer.config),
      layer_(layer.idx),
      window_(layer.spec.window),
      q_(weights, prefix_of(layer) + "q"),
      kv_down_(weights, prefix_of(layer) + "kv_down"),
      kv_norm_(weights, prefix_of(layer) + "kv_norm", config_.mla.norm_eps),
      k_rope_(weights, prefix_of(layer) + "k_rope"),
      kv_up_(weights, prefix_of(layer) + "kv_up"),
      out_(weights, prefix_of(layer) + "out") {
  if (config_.mla.q_lora_rank > 0) {
    q_low_rank_.emplace(LowRankQuery{{weights, prefix_of(layer) + "q_down"},
                                     {weights, prefix_of(layer) + "q_norm", config_.mla.norm_eps}});
  }
}

double LatentAttention::softmax_scale() const {
  const double head_dim = static_cast<double>(config_.mla.qk_nope_head_dim + config_.mla.qk_rope_head_dim);
  return yarn_softmax_scale(config_.yarn) / std::sqrt(head_dim);
}

void LatentAttention::project(const Pass& pass, Tensor x) {
  Ops& ops = pass.ops;
  const MlaConfig& mla = config_.mla;
  const int64_t T = x.dim(0), H = config_.num_heads, N = mla.qk_nope_head_dim, P = mla.qk_rope_head_dim;
  saved_.x = x;
  saved_.q_latent = q_low_rank_ ? pass.push({T, mla.q_lora_rank}) : Tensor();
  saved_.kv_latent = pass.push({T, mla.kv_lora_rank});
  saved_.q = pass.push({T, H, N + P});
  if (q_low_rank_) {
    const Tensor raw = pass.push({T, mla.q_lora_rank});
    q_low_rank_->down.forward(ops, x, raw);
    q_low_rank_->norm.forward(pass, raw, saved_.q_latent);
  }
  q_.forward(ops, q_low_rank_ ? saved_.q_latent : x, saved_.q.reshape({T, H * (N + P)}));
  ops.rope_forward(pass.rotation(saved_.q, P, config_.rope.layout, N));

  const Tensor raw = pass.push({T, mla.kv_lora_rank});
  kv_down_.forward(ops, x, raw);
  kv_norm_.forward(pass, raw, saved_.kv_latent);
}

void LatentAttention::project_shared_key(const Pass& pass, Tensor x, Tensor k_rope) const {
  const int64_t T = x.dim(0), P = config_.mla.qk_rope_head_dim;
  k_rope_.forward(pass.ops, x, k_rope.reshape({T, P}));
  pass.ops.rope_forward(pass.rotation(k_rope, P, config_.rope.layout));
}

void LatentAttention::forward(const Pass& pass, Tensor x, Tensor residual, Tensor y) {
  Ops& ops = pass.ops;
  const MlaConfig& mla = config_.mla;
  const int64_t T = x.dim(0), H = config_.num_heads, N = mla.qk_nope_head_dim, P = mla.qk_rope_head_dim,
                U = mla.v_head_dim;
  project(pass, x);
  saved_.k = pass.push({T, H, N + P});
  saved_.v = pass.push({T, H, U});
  saved_.out = pass.push({T, H, U});
  saved_.lse = pass.push_stat({pass.batch.num_seqs, H, pass.batch.seq_len});
  {
    ArenaScope scope(pass.activations);
    const Tensor kv = pass.push({T, H, N + U});
    const Tensor k_rope = pass.push({T, 1, P});
    kv_up_.forward(ops, saved_.kv_latent, kv.reshape({T, H * (N + U)}));
    project_shared_key(pass, x, k_rope);
    ops.mla_expand_forward({.kv = kv, .k_rope = k_rope.reshape({T, P}), .k = saved_.k, .v = saved_.v});
  }
  pass.capture(Intermediate::kAttentionQuery, layer_, saved_.q);
  pass.capture(Intermediate::kAttentionKey, layer_, saved_.k);
  pass.capture(Intermediate::kAttentionValue, layer_, saved_.v);

  ops.attention_forward({.shape = pass.attention_shape(softmax_scale(), window_),
                         .q = saved_.q,
                         .k = saved_.k,
                         .v = saved_.v,
                         .out = saved_.out,
                         .lse = saved_.lse});
  pass.capture(Intermediate::kAttentionHeads, layer_, saved_.out);
  out_.forward(ops, saved_.out.reshape({T, H * U}), y, residual);
}

void LatentAttention::cached_forward(const Pass& pass, Tensor x, const LayerCache& cache, Tensor slots, Tensor residual,
                                     Tensor y) {
  Ops& ops = pass.ops;
  const MlaConfig& mla = config_.mla;
  const int64_t T = x.dim(0), H = config_.num_heads, R = mla.kv_lora_rank, P = mla.qk_rope_head_dim, U = mla.v_head_dim;
  const Tensor positions = pass.batch.positions, keys = cache.tensors[0];
  project(pass, x);
  const Tensor k_rope = pass.push({T, 1, P});
  project_shared_key(pass, x, k_rope);
  ops.cache_write({.rows = saved_.kv_latent, .slots = slots, .positions = positions, .cache = keys});
  ops.cache_write({.rows = k_rope.reshape({T, P}), .slots = slots, .positions = positions, .cache = keys, .offset = R});

  const Tensor latent_q = pass.push({T, H, R + P});
  const Tensor latents = pass.push({T, H, R});
  const Tensor out = pass.push({T, H, U});
  ops.mla_absorb_query({.q = saved_.q, .kv_up = kv_up_.weight().value, .latent_q = latent_q});
  ops.cached_attention({.scale = softmax_scale(),
                        .window = window_,
                        .q = latent_q,
                        .slots = slots,
                        .positions = positions,
                        .keys = keys,
                        .values = {},
                        .num_kv_heads = 1,
                        .out = latents});
  ops.mla_expand_output({.latents = latents, .kv_up = kv_up_.weight().value, .out = out});
  out_.forward(ops, out.reshape({T, H * U}), y, residual);
}

void LatentAttention::backward(const Pass& pass, Tensor dy, Tensor dx) {
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const MlaConfig& mla = config_.mla;
  const int64_t T = dy.dim(0), H = config_.num_heads, N = mla.qk_nope_head_dim, P = mla.qk_rope_head_dim,
                U = mla.v_head_dim;

  const Tensor dout = pass.push({T, H, U});
  out_.backward(ops, saved_.out.reshape({T, H * U}), dy, dout.reshape({T, H * U}));

  const Tensor dq = pass.push({T, H, N + P});
  const Tensor dk = pass.push({T, H, N + P});
  const Tensor dv = pass.push({T, H, U});
  ops.attention_backward({.shape = pass.attention_shape(softmax_scale(), window_),
                          .q = saved_.q,
                          .k = saved_.k,
                          .v = saved_.v,
                          .out = saved_.out,
                          .lse = saved_.lse,
                          .dout = dout,
                          .dq = dq,
                          .dk = dk,
                          .dv = dv});

  // Keys and values: through the shared rotated part, and through the latent.
  const Tensor dkv = pass.push({T, H, N + U});
  const Tensor dk_rope = pass.push({T, 1, P});
  ops.mla_expand_backward({.dk = dk, .dv = dv, .dkv = dkv, .dk_rope = dk_rope.reshape({T, P})});
  ops.rope_backward(pass.rotation(dk_rope, P, config_.rope.layout));
  k_rope_.backward(ops, saved_.x, dk_rope.reshape({T, P}), dx);

  const Tensor dkv_latent = pass.push({T, mla.kv_lora_rank});
  kv_up_.backward(ops, saved_.kv_latent, dkv.reshape({T, H * (N + U)}), dkv_latent);
  kv_norm_.backward(pass, dkv_latent, dkv_latent);
  kv_down_.backward(ops, saved_.x, dkv_latent, dx, /*accumulate=*/true);

  // Queries.
  ops.rope_backward(pass.rotation(dq, P, config_.rope.layout, N));
  const Tensor dq2 = dq.reshape({T, H * (N + P)});
  if (!q_low_rank_) return q_.backward(ops, saved_.x, dq2, dx, /*accumulate=*/true);
  const Tensor dq_latent = pass.push({T, mla.q_lora_rank});
  q_.backward(ops, saved_.q_latent, dq2, dq_latent);
  q_low_rank_->norm.backward(pass, dq_latent, dq_latent);
  q_low_rank_->down.backward(ops, saved_.x, dq_latent, dx, /*accumulate=*/true);
}

}  // namespace nmoe
