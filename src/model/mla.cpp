#include "model/mla.h"

#include <cmath>

#include "model/rope_table.h"

namespace nmoe {

LatentAttention::LatentAttention(const ModelConfig& config, ParameterSet& parameters, const std::string& name,
                                 int64_t window)
    : config_(config),
      name_(name),
      window_(window),
      q_low_rank_(
          config.mla.q_lora_rank == 0
              ? std::nullopt
              : std::optional<LowRankQuery>(
                    {parameters.add(matrix_parameter(config, name + "q_down", config.mla.q_lora_rank, config.dim)),
                     Norm(parameters, name + "q_norm", config.mla.q_lora_rank, config.mla.norm_eps)})),
      wq_(parameters.add(matrix_parameter(
          config, name + "q", config.num_heads * (config.mla.qk_nope_head_dim + config.mla.qk_rope_head_dim),
          q_low_rank_ ? config.mla.q_lora_rank : config.dim))),
      wkv_down_(parameters.add(matrix_parameter(config, name + "kv_down", config.mla.kv_lora_rank, config.dim))),
      kv_norm_(parameters, name + "kv_norm", config.mla.kv_lora_rank, config.mla.norm_eps),
      wk_rope_(parameters.add(matrix_parameter(config, name + "k_rope", config.mla.qk_rope_head_dim, config.dim))),
      wkv_up_(parameters.add(matrix_parameter(config, name + "kv_up",
                                              config.num_heads * (config.mla.qk_nope_head_dim + config.mla.v_head_dim),
                                              config.mla.kv_lora_rank))),
      wo_(parameters.add(
          output_parameter(config, name + "out", config.dim, config.num_heads * config.mla.v_head_dim))) {}

double LatentAttention::softmax_scale() const {
  const double head_dim = static_cast<double>(config_.mla.qk_nope_head_dim + config_.mla.qk_rope_head_dim);
  return yarn_softmax_scale(config_.yarn) / std::sqrt(head_dim);
}

AttentionShape LatentAttention::shape(const Pass& pass) const {
  return {.num_seqs = pass.batch.num_seqs,
          .seq_len = pass.batch.seq_len,
          .scale = softmax_scale(),
          .window = window_,
          .cu_seqlens = pass.batch.cu_seqlens};
}

Rope LatentAttention::rope_args(const Pass& pass, Tensor x, int64_t offset) const {
  return {.x = x,
          .positions = pass.batch.positions,
          .cos = pass.rope.cos,
          .sin = pass.rope.sin,
          .rope_offset = offset,
          .layout = config_.rope.layout};
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
    ops.linear_forward({x, q_low_rank_->down.value, raw});
    q_low_rank_->norm.forward(pass, raw, saved_.q_latent);
  }
  ops.linear_forward({q_low_rank_ ? saved_.q_latent : x, wq_.value, saved_.q.reshape({T, H * (N + P)})});
  ops.rope_forward(rope_args(pass, saved_.q, N));

  const Tensor raw = pass.push({T, mla.kv_lora_rank});
  ops.linear_forward({x, wkv_down_.value, raw});
  kv_norm_.forward(pass, raw, saved_.kv_latent);
}

void LatentAttention::project_shared_key(const Pass& pass, Tensor x, Tensor k_rope) const {
  const int64_t T = x.dim(0), P = config_.mla.qk_rope_head_dim;
  pass.ops.linear_forward({x, wk_rope_.value, k_rope.reshape({T, P})});
  pass.ops.rope_forward(rope_args(pass, k_rope, 0));
}

void LatentAttention::forward(const Pass& pass, Tensor x, Tensor y) {
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
    ops.linear_forward({saved_.kv_latent, wkv_up_.value, kv.reshape({T, H * (N + U)})});
    project_shared_key(pass, x, k_rope);
    ops.mla_expand_forward({kv, k_rope.reshape({T, P}), saved_.k, saved_.v});
  }
  pass.look(name_, "q", saved_.q);
  pass.look(name_, "k", saved_.k);
  pass.look(name_, "v", saved_.v);

  ops.attention_forward({shape(pass), saved_.q, saved_.k, saved_.v, saved_.out, saved_.lse});
  pass.look(name_, "heads", saved_.out);
  ops.linear_forward({saved_.out.reshape({T, H * U}), wo_.value, y, /*accumulate=*/true});
}

LayerCache LatentAttention::allocate_cache(Arena& arena, DType dtype, int64_t num_slots, int64_t capacity) const {
  return {.keys = arena.allocate(dtype, {num_slots, capacity, config_.mla.kv_lora_rank + config_.mla.qk_rope_head_dim}),
          .values = {}};
}

void LatentAttention::cached_forward(const Pass& pass, Tensor x, const LayerCache& cache, Tensor slots, Tensor y) {
  Ops& ops = pass.ops;
  const MlaConfig& mla = config_.mla;
  const int64_t T = x.dim(0), H = config_.num_heads, R = mla.kv_lora_rank, P = mla.qk_rope_head_dim, U = mla.v_head_dim;
  const Tensor positions = pass.batch.positions;
  project(pass, x);
  const Tensor k_rope = pass.push({T, 1, P});
  project_shared_key(pass, x, k_rope);
  ops.cache_write({.rows = saved_.kv_latent, .slots = slots, .positions = positions, .cache = cache.keys});
  ops.cache_write(
      {.rows = k_rope.reshape({T, P}), .slots = slots, .positions = positions, .cache = cache.keys, .offset = R});

  const Tensor latent_q = pass.push({T, H, R + P});
  const Tensor latents = pass.push({T, H, R});
  const Tensor out = pass.push({T, H, U});
  ops.mla_absorb_query({saved_.q, wkv_up_.value, latent_q});
  ops.cached_attention({.scale = softmax_scale(),
                        .window = window_,
                        .q = latent_q,
                        .slots = slots,
                        .positions = positions,
                        .keys = cache.keys,
                        .values = {},
                        .num_kv_heads = 1,
                        .out = latents});
  ops.mla_expand_output({latents, wkv_up_.value, out});
  ops.linear_forward({out.reshape({T, H * U}), wo_.value, y, /*accumulate=*/true});
}

void LatentAttention::backward(const Pass& pass, Tensor dy, Tensor dx) {
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const MlaConfig& mla = config_.mla;
  const int64_t T = dy.dim(0), H = config_.num_heads, N = mla.qk_nope_head_dim, P = mla.qk_rope_head_dim,
                U = mla.v_head_dim;

  const Tensor dout = pass.push({T, H, U});
  ops.linear_backward_input({dy, wo_.value, dout.reshape({T, H * U})});
  ops.linear_backward_weight({saved_.out.reshape({T, H * U}), dy, wo_.grad, pass.accumulate_grads});

  const Tensor dq = pass.push({T, H, N + P});
  const Tensor dk = pass.push({T, H, N + P});
  const Tensor dv = pass.push({T, H, U});
  ops.attention_backward({.shape = shape(pass),
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
  ops.mla_expand_backward({dk, dv, dkv, dk_rope.reshape({T, P})});
  ops.rope_backward(rope_args(pass, dk_rope, 0));
  ops.linear_backward_weight({saved_.x, dk_rope.reshape({T, P}), wk_rope_.grad, pass.accumulate_grads});
  ops.linear_backward_input({dk_rope.reshape({T, P}), wk_rope_.value, dx});

  const Tensor dkv_latent = pass.push({T, mla.kv_lora_rank});
  ops.linear_backward_weight({saved_.kv_latent, dkv.reshape({T, H * (N + U)}), wkv_up_.grad, pass.accumulate_grads});
  ops.linear_backward_input({dkv.reshape({T, H * (N + U)}), wkv_up_.value, dkv_latent});
  kv_norm_.backward(pass, dkv_latent, dkv_latent);
  ops.linear_backward_weight({saved_.x, dkv_latent, wkv_down_.grad, pass.accumulate_grads});
  ops.linear_backward_input({dkv_latent, wkv_down_.value, dx, /*accumulate=*/true});

  // Queries.
  ops.rope_backward(rope_args(pass, dq, N));
  const Tensor dq2 = dq.reshape({T, H * (N + P)});
  if (!q_low_rank_) {
    ops.linear_backward_weight({saved_.x, dq2, wq_.grad, pass.accumulate_grads});
    ops.linear_backward_input({dq2, wq_.value, dx, /*accumulate=*/true});
    return;
  }
  const Tensor dq_latent = pass.push({T, mla.q_lora_rank});
  ops.linear_backward_weight({saved_.q_latent, dq2, wq_.grad, pass.accumulate_grads});
  ops.linear_backward_input({dq2, wq_.value, dq_latent});
  q_low_rank_->norm.backward(pass, dq_latent, dq_latent);
  ops.linear_backward_weight({saved_.x, dq_latent, q_low_rank_->down.grad, pass.accumulate_grads});
  ops.linear_backward_input({dq_latent, q_low_rank_->down.value, dx, /*accumulate=*/true});
}

}  // namespace nmoe
