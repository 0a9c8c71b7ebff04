#include "model/parts/gqa.h"

#include <cmath>

#include "model/parts/rope_table.h"
#include "model/spec/names.h"

namespace nmoe {
namespace {

// Heads [first, first + count), of `size` values each, of x [T, all heads * size]: [T, count, size].
Tensor heads_of(Tensor x, int64_t first, int64_t count, int64_t size) {
  return x.columns(first * size, (first + count) * size).reshape({x.dim(0), count, size});
}

}  // namespace

GroupedQueryAttention::GroupedQueryAttention(const LayerPart& part, WeightSet& weights)
    : config_(part.config),
      layer_(part.layer),
      window_(part.spec.window),
      rotates_(part.spec.rotates),
      qkv_(weights, attention_prefix(part),
           config_.gqa.output_gate ? std::vector<std::string_view>{"q", "k", "v", "gate"}
                                   : std::vector<std::string_view>{"q", "k", "v"}),
      out_(weights, attention_prefix(part) + "out") {
  if (config_.gqa.bias != AttentionBias::kNone) qkv_bias_.emplace(weights, attention_prefix(part) + "qkv_bias");
  if (config_.gqa.bias == AttentionBias::kAll) out_bias_.emplace(weights, attention_prefix(part) + "out_bias");
  if (config_.gqa.sinks) sinks_ = &weights.at(attention_prefix(part) + "sinks");
  if (config_.gqa.qk_norm) {
    q_norm_.emplace(weights, attention_prefix(part) + "q_norm", config_.norm_eps);
    k_norm_.emplace(weights, attention_prefix(part) + "k_norm", config_.norm_eps);
  }
}

double GroupedQueryAttention::softmax_scale() const {
  // YaRN stretches rotations; what is not rotated stays as it is.
  const double scale = rotates_ ? yarn_softmax_scale(config_.yarn) : 1.0;
  return scale / std::sqrt(static_cast<double>(config_.gqa.head_dim));
}

Tensor GroupedQueryAttention::vectors_of_norm(Tensor heads) const {
  if (config_.gqa.qk_norm_over == QkNormOver::kHead) return heads;
  return heads.reshape({heads.dim(0), heads.dim(1) * heads.dim(2)});
}

Rope GroupedQueryAttention::rotation(const Pass& pass, Tensor heads) const {
  return pass.rotation(heads, config_.gqa.rotated(), config_.rope.layout);
}

int64_t GroupedQueryAttention::projected_width() const {
  const int64_t H = config_.num_heads, G = config_.gqa.num_kv_heads;
  return (H + G + G + (config_.gqa.output_gate ? H : 0)) * config_.gqa.head_dim;
}

void GroupedQueryAttention::project_out(const Pass& pass, Kept& kept, Tensor residual, Tensor y) const {
  const Tensor rows = kept.gated = kept.out.reshape({kept.out.dim(0), kept.out.dim(1) * kept.out.dim(2)});
  if (kept.gate.defined()) {
    kept.gated = pass.push(rows.shape());
    pass.ops.gate_forward({.function = GateFunction::kSigmoid, .x = rows, .gate = kept.gate, .y = kept.gated});
  }
  const ArenaScope scope(pass.activations);
  out_.forward(pass.ops, kept.gated, y, out_bias_ ? out_bias_->forward(pass, residual, rows.dim(0)) : residual);
}

GroupedQueryAttention::Kept GroupedQueryAttention::project(const Pass& pass, const Rows& x) const {
  Ops& ops = pass.ops;
  const int64_t T = x.tensor().dim(0), H = config_.num_heads, G = config_.gqa.num_kv_heads, C = config_.gqa.head_dim;
  const Tensor qkv = pass.push({T, projected_width()});
  // What norms make of queries and keys lies elsewhere: backward needs both.
  const Tensor qk = q_norm_ ? pass.push({T, (H + G) * C}) : qkv;
  Kept kept;
  kept.q = heads_of(qk, 0, H, C);
  kept.k = heads_of(qk, H, G, C);
  kept.v = heads_of(qkv, H + G, G, C);
  if (config_.gqa.output_gate) kept.gate = qkv.columns((H + G + G) * C, projected_width());
  {
    const ArenaScope scope(pass.activations);
    qkv_.forward(ops, x, qkv, qkv_bias_ ? qkv_bias_->forward(pass, {}, T) : Tensor());
  }
  if (q_norm_) {
    kept.q_norm = q_norm_->forward(pass, vectors_of_norm(heads_of(qkv, 0, H, C)), vectors_of_norm(kept.q));
    kept.k_norm = k_norm_->forward(pass, vectors_of_norm(heads_of(qkv, H, G, C)), vectors_of_norm(kept.k));
  }
  if (rotates_) ops.rope_forward(rotation(pass, heads_of(qk, 0, H + G, C)));
  pass.capture(Intermediate::kAttentionQuery, layer_, kept.q);
  pass.capture(Intermediate::kAttentionKey, layer_, kept.k);
  pass.capture(Intermediate::kAttentionValue, layer_, kept.v);
  return kept;
}

Application GroupedQueryAttention::forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const {
  Ops& ops = pass.ops;
  const int64_t T = x.tensor().dim(0), H = config_.num_heads, C = config_.gqa.head_dim;
  Kept kept = project(pass, x);
  kept.out = pass.push({T, H, C});
  kept.lse = pass.push_stat({pass.batch.num_seqs, H, pass.batch.seq_len});
  if (const Batch& batch = pass.batch; batch.parents.defined()) {
    ops.tree_attention({.scale = softmax_scale(),
                        .window = window_,
                        .q = kept.q,
                        .k = kept.k,
                        .v = kept.v,
                        .out = kept.out,
                        .positions = batch.positions,
                        .bounds = batch.cu_seqlens,
                        .parents = batch.parents,
                        .sinks = sinks()});
  } else {
    ops.attention_forward({.shape = pass.attention_shape(softmax_scale(), window_),
                           .q = kept.q,
                           .k = kept.k,
                           .v = kept.v,
                           .out = kept.out,
                           .lse = kept.lse,
                           .sinks = sinks()});
  }
  pass.capture(Intermediate::kAttentionHeads, layer_, kept.out);
  project_out(pass, kept, residual, y);
  return Application(kept);
}

void GroupedQueryAttention::cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots,
                                           Tensor residual, Tensor y) const {
  Ops& ops = pass.ops;
  const int64_t T = x.dim(0), H = config_.num_heads, G = config_.gqa.num_kv_heads, C = config_.gqa.head_dim;
  const Tensor positions = pass.batch.positions, keys = states.by_position[0], values = states.by_position[1];
  Kept kept = project(pass, x);
  for (const auto& [rows, cache] : {std::pair(kept.k, keys), std::pair(kept.v, values)}) {
    ops.cache_write({.rows = rows.reshape({T, G * C}),
                     .slots = slots,
                     .positions = positions,
                     .pages = states.pages,
                     .cache = cache});
  }
  kept.out = pass.push({T, H, C});
  ops.cached_attention({.scale = softmax_scale(),
                        .window = window_,
                        .q = kept.q,
                        .slots = slots,
                        .positions = positions,
                        .pages = states.pages,
                        .keys = keys,
                        .values = values,
                        .num_kv_heads = G,
                        .out = kept.out,
                        .sinks = sinks()});
  pass.capture(Intermediate::kAttentionHeads, layer_, kept.out);
  project_out(pass, kept, residual, y);
}

void GroupedQueryAttention::backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy,
                                     Tensor dx) const {
  const auto& kept = of.as<Kept>();
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const int64_t T = dy.tensor().dim(0), H = config_.num_heads, G = config_.gqa.num_kv_heads, C = config_.gqa.head_dim;

  const Tensor dout = pass.push({T, H, C});
  if (out_bias_) out_bias_->backward(ops, dy.tensor());
  const Tensor dout_rows = dout.reshape({T, H * C});
  out_.backward(ops, kept.gated, dy, dout_rows);

  const Tensor dqkv = pass.push({T, projected_width()});
  if (kept.gate.defined()) {
    ops.gate_backward({.function = GateFunction::kSigmoid,
                       .x = kept.out.reshape({T, H * C}),
                       .gate = kept.gate,
                       .dy = dout_rows,
                       .dx = dout_rows,
                       .dgate = dqkv.columns((H + G + G) * C, projected_width())});
  }
  const Tensor dq = heads_of(dqkv, 0, H, C), dk = heads_of(dqkv, H, G, C), dv = heads_of(dqkv, H + G, G, C);
  ops.attention_backward({.shape = pass.attention_shape(softmax_scale(), window_),
                          .q = kept.q,
                          .k = kept.k,
                          .v = kept.v,
                          .out = kept.out,
                          .lse = kept.lse,
                          .dout = dout,
                          .dq = dq,
                          .dk = dk,
                          .dv = dv,
                          .rope = rotates_ ? rotation(pass, {}) : Rope{},
                          .rope_keys = true,
                          .sinks = sinks(),
                          .dsinks = sinks_ != nullptr ? sinks_->grad_to_add_to(ops) : Tensor()});
  if (q_norm_) {
    q_norm_->backward(pass, kept.q_norm, vectors_of_norm(dq), vectors_of_norm(dq));
    k_norm_->backward(pass, kept.k_norm, vectors_of_norm(dk), vectors_of_norm(dk));
  }

  if (qkv_bias_) qkv_bias_->backward(ops, dqkv);
  qkv_.backward(ops, x, dqkv, dx);
}

}  // namespace nmoe
