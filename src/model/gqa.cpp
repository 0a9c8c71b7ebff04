#include "model/gqa.h"

#include <cmath>

#include "model/rope_table.h"

namespace nmoe {

GroupedQueryAttention::GroupedQueryAttention(const ModelConfig& config, ParameterSet& parameters,
                                             const std::string& name, int64_t window)
    : config_(config),
      name_(name),
      window_(window),
      wq_(parameters.add(matrix_parameter(config, name + "q", config.num_heads * config.gqa.head_dim, config.dim))),
      wk_(parameters.add(
          matrix_parameter(config, name + "k", config.gqa.num_kv_heads * config.gqa.head_dim, config.dim))),
      wv_(parameters.add(
          matrix_parameter(config, name + "v", config.gqa.num_kv_heads * config.gqa.head_dim, config.dim))),
      wo_(parameters.add(output_parameter(config, name + "out", config.dim, config.num_heads * config.gqa.head_dim))) {
  if (config.gqa.qk_norm) {
    q_norm_.emplace(parameters, name + "q_norm", config.gqa.head_dim, config.norm_eps);
    k_norm_.emplace(parameters, name + "k_norm", config.gqa.head_dim, config.norm_eps);
  }
}

double GroupedQueryAttention::softmax_scale() const {
  return yarn_softmax_scale(config_.yarn) / std::sqrt(static_cast<double>(config_.gqa.head_dim));
}

AttentionShape GroupedQueryAttention::shape(const Pass& pass) const {
  return {.num_seqs = pass.batch.num_seqs,
          .seq_len = pass.batch.seq_len,
          .scale = softmax_scale(),
          .window = window_,
          .cu_seqlens = pass.batch.cu_seqlens};
}

Rope GroupedQueryAttention::rope_args(const Pass& pass, Tensor x) const {
  return {.x = x,
          .positions = pass.batch.positions,
          .cos = pass.rope.cos,
          .sin = pass.rope.sin,
          .rope_offset = 0,
          .layout = config_.rope.layout};
}

void GroupedQueryAttention::project(const Pass& pass, Tensor x) {
  Ops& ops = pass.ops;
  const int64_t T = x.dim(0), H = config_.num_heads, G = config_.gqa.num_kv_heads, C = config_.gqa.head_dim;
  saved_.x = x;
  saved_.q = pass.push({T, H, C});
  saved_.k = pass.push({T, G, C});
  saved_.v = pass.push({T, G, C});
  // With norms, the projections are kept apart from what the norms make of them.
  const Tensor q_raw = q_norm_ ? pass.push({T, H, C}) : saved_.q;
  const Tensor k_raw = k_norm_ ? pass.push({T, G, C}) : saved_.k;
  ops.linear_forward({x, wq_.value, q_raw.reshape({T, H * C})});
  ops.linear_forward({x, wk_.value, k_raw.reshape({T, G * C})});
  ops.linear_forward({x, wv_.value, saved_.v.reshape({T, G * C})});
  if (q_norm_) q_norm_->forward(pass, q_raw, saved_.q);
  if (k_norm_) k_norm_->forward(pass, k_raw, saved_.k);
  ops.rope_forward(rope_args(pass, saved_.q));
  ops.rope_forward(rope_args(pass, saved_.k));
  pass.look(name_, "q", saved_.q);
  pass.look(name_, "k", saved_.k);
}

void GroupedQueryAttention::forward(const Pass& pass, Tensor x, Tensor y) {
  Ops& ops = pass.ops;
  const int64_t T = x.dim(0), H = config_.num_heads, C = config_.gqa.head_dim;
  project(pass, x);
  saved_.out = pass.push({T, H, C});
  saved_.lse = pass.push_stat({pass.batch.num_seqs, H, pass.batch.seq_len});
  ops.attention_forward({shape(pass), saved_.q, saved_.k, saved_.v, saved_.out, saved_.lse});
  pass.look(name_, "heads", saved_.out);
  ops.linear_forward({saved_.out.reshape({T, H * C}), wo_.value, y, /*accumulate=*/true});
}

LayerCache GroupedQueryAttention::allocate_cache(Arena& arena, DType dtype, int64_t num_slots, int64_t capacity) const {
  const Shape shape({num_slots, capacity, config_.gqa.num_kv_heads * config_.gqa.head_dim});
  const Tensor keys = arena.allocate(dtype, shape);
  return {.keys = keys, .values = arena.allocate(dtype, shape)};
}

void GroupedQueryAttention::cached_forward(const Pass& pass, Tensor x, const LayerCache& cache, Tensor slots,
                                           Tensor y) {
  Ops& ops = pass.ops;
  const int64_t T = x.dim(0), H = config_.num_heads, G = config_.gqa.num_kv_heads, C = config_.gqa.head_dim;
  const Tensor positions = pass.batch.positions;
  project(pass, x);
  ops.cache_write({.rows = saved_.k.reshape({T, G * C}), .slots = slots, .positions = positions, .cache = cache.keys});
  ops.cache_write(
      {.rows = saved_.v.reshape({T, G * C}), .slots = slots, .positions = positions, .cache = cache.values});
  const Tensor out = pass.push({T, H, C});
  ops.cached_attention({.scale = softmax_scale(),
                        .window = window_,
                        .q = saved_.q,
                        .slots = slots,
                        .positions = positions,
                        .keys = cache.keys,
                        .values = cache.values,
                        .num_kv_heads = G,
                        .out = out});
  ops.linear_forward({out.reshape({T, H * C}), wo_.value, y, /*accumulate=*/true});
}

void GroupedQueryAttention::backward(const Pass& pass, Tensor dy, Tensor dx) {
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const int64_t T = dy.dim(0), H = config_.num_heads, G = config_.gqa.num_kv_heads, C = config_.gqa.head_dim;

  const Tensor dout = pass.push({T, H, C});
  ops.linear_backward_input({dy, wo_.value, dout.reshape({T, H * C})});
  ops.linear_backward_weight({saved_.out.reshape({T, H * C}), dy, wo_.grad, pass.accumulate_grads});

  const Tensor dq = pass.push({T, H, C});
  const Tensor dk = pass.push({T, G, C});
  const Tensor dv = pass.push({T, G, C});
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
  ops.rope_backward(rope_args(pass, dq));
  ops.rope_backward(rope_args(pass, dk));
  if (q_norm_) q_norm_->backward(pass, dq, dq);
  if (k_norm_) k_norm_->backward(pass, dk, dk);

  const Tensor dq2 = dq.reshape({T, H * C}), dk2 = dk.reshape({T, G * C}), dv2 = dv.reshape({T, G * C});
  ops.linear_backward_weight({saved_.x, dq2, wq_.grad, pass.accumulate_grads});
  ops.linear_backward_weight({saved_.x, dk2, wk_.grad, pass.accumulate_grads});
  ops.linear_backward_weight({saved_.x, dv2, wv_.grad, pass.accumulate_grads});
  ops.linear_backward_input({dq2, wq_.value, dx});
  ops.linear_backward_input({dk2, wk_.value, dx, /*accumulate=*/true});
  ops.linear_backward_input({dv2, wv_.value, dx, /*accumulate=*/true});
}

}  // namespace nmoe
