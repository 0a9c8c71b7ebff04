#include "model/parts/kda.h"

#include "model/spec/kda.h"
#include "model/spec/names.h"

namespace nmoe {

Kda::Kda(const LayerPart& part, WeightSet& weights)
    : config_(part.config.kda),
      layer_(part.layer),
      in_(weights, kda_prefix(part), {"q", "k", "v", "b"}),
      decay_down_(weights, kda_prefix(part) + "decay_down"),
      gate_down_(weights, kda_prefix(part) + "gate_down"),
      decay_up_(weights, kda_prefix(part) + "decay_up"),
      gate_up_(weights, kda_prefix(part) + "gate_up"),
      out_(weights, kda_prefix(part) + "out"),
      norm_(weights, kda_prefix(part) + "norm", part.config.norm_eps),
      conv_(weights.at(kda_prefix(part) + "conv")),
      dt_bias_(weights.at(kda_prefix(part) + "dt_bias")),
      a_log_(weights.at(kda_prefix(part) + "a_log")) {}

Tensor Kda::convolution_of(Tensor projected) const { return projected.columns(0, config_.conv_channels()); }
Tensor Kda::b_of(Tensor projected) const { return projected.columns(config_.conv_channels(), projected.dim(1)); }
Tensor Kda::in_heads(Tensor rows) const { return rows.reshape({rows.dim(0), config_.num_heads, config_.head_dim}); }
Tensor Kda::heads_of(Tensor convolved, int64_t index) const {
  return in_heads(convolved.columns(index * config_.width(), (index + 1) * config_.width()));
}

ConvolutionInputs Kda::convolution(const Pass& pass, const Kept& kept) const {
  return {.num_seqs = pass.batch.num_seqs,
          .seq_len = pass.batch.seq_len,
          .x = convolution_of(kept.projected),
          .weight = conv_.value,
          .cu_seqlens = pass.batch.cu_seqlens};
}

DeltaRuleInputs Kda::rule(const Pass& pass, const Kept& kept) const {
  return {.num_seqs = pass.batch.num_seqs,
          .seq_len = pass.batch.seq_len,
          .q = heads_of(kept.convolved, 0),
          .k = heads_of(kept.convolved, 1),
          .v = heads_of(kept.convolved, 2),
          .b = b_of(kept.projected),
          .a = in_heads(kept.steps),
          .dt_bias = dt_bias_.value,
          .a_log = a_log_.value,
          .cu_seqlens = pass.batch.cu_seqlens};
}

Kda::Kept Kda::project(const Pass& pass, const Rows& x) const {
  const int64_t T = x.tensor().dim(0), W = config_.width(), C = config_.head_dim;
  Kept kept;
  kept.projected = pass.push({T, config_.conv_channels() + config_.num_heads});
  kept.convolved = pass.push({T, config_.conv_channels()});
  kept.decay_latent = pass.push({T, C});
  kept.gate_latent = pass.push({T, C});
  kept.steps = pass.push({T, W});
  kept.gate = pass.push({T, W});
  kept.scanned = pass.push({T, config_.num_heads, C});
  kept.normed = pass.push({T, W});
  kept.gated = pass.push({T, W});
  in_.forward(pass.ops, x, kept.projected);
  decay_down_.forward(pass.ops, x, kept.decay_latent);
  decay_up_.forward(pass.ops, kept.decay_latent, kept.steps);
  gate_down_.forward(pass.ops, x, kept.gate_latent);
  gate_up_.forward(pass.ops, kept.gate_latent, kept.gate);
  return kept;
}

void Kda::finish(const Pass& pass, Kept& kept, Tensor residual, Tensor y) const {
  pass.capture(Intermediate::kAttentionHeads, layer_, kept.scanned);
  kept.norm = norm_.forward(pass, kept.scanned, in_heads(kept.normed));
  pass.ops.gate_forward({.function = GateFunction::kSigmoid, .x = kept.normed, .gate = kept.gate, .y = kept.gated});
  out_.forward(pass.ops, kept.gated, y, residual);
}

Application Kda::forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const {
  NMOE_CHECK(!pass.batch.parents.defined(), "a delta rule over a tree of texts");
  Kept kept = project(pass, x);
  pass.ops.convolution_forward({.in = convolution(pass, kept), .y = kept.convolved});
  pass.ops.delta_rule_forward({.in = rule(pass, kept), .y = kept.scanned});
  finish(pass, kept, residual, y);
  return Application(kept);
}

void Kda::cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor residual,
                         Tensor y) const {
  const auto state = [&](KdaState which) { return states.fixed[static_cast<size_t>(which)]; };
  Kept kept = project(pass, x);
  pass.ops.cached_convolution({.x = convolution_of(kept.projected),
                               .weight = conv_.value,
                               .slots = slots,
                               .positions = pass.batch.positions,
                               .rows = state(KdaState::kConvolution),
                               .y = kept.convolved});
  const DeltaRuleInputs in = rule(pass, kept);
  pass.ops.cached_delta_rule({.q = in.q,
                              .k = in.k,
                              .v = in.v,
                              .b = in.b,
                              .a = in.a,
                              .dt_bias = in.dt_bias,
                              .a_log = in.a_log,
                              .slots = slots,
                              .positions = pass.batch.positions,
                              .states = state(KdaState::kState),
                              .y = kept.scanned});
  finish(pass, kept, residual, y);
}

void Kda::backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const {
  const auto& kept = of.as<Kept>();
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const Tensor dprojected = pass.push(kept.projected.shape()), dconvolved = pass.push(kept.convolved.shape());
  const Tensor dgated = pass.push(kept.gated.shape()), dscanned = in_heads(dgated);
  const Tensor dgate = pass.push(kept.gate.shape()), dsteps = pass.push(kept.steps.shape());
  const Tensor dgate_latent = pass.push(kept.gate_latent.shape()), ddecay_latent = pass.push(kept.decay_latent.shape());
  out_.backward(ops, kept.gated, dy, dgated);
  ops.gate_backward({.function = GateFunction::kSigmoid,
                     .x = kept.normed,
                     .gate = kept.gate,
                     .dy = dgated,
                     .dx = dgated,
                     .dgate = dgate});
  norm_.backward(pass, kept.norm, dscanned, dscanned);
  ops.delta_rule_backward({.in = rule(pass, kept),
                           .dy = dscanned,
                           .dq = heads_of(dconvolved, 0),
                           .dk = heads_of(dconvolved, 1),
                           .dv = heads_of(dconvolved, 2),
                           .db = b_of(dprojected),
                           .da = in_heads(dsteps),
                           .ddt_bias = dt_bias_.grad_to_add_to(ops),
                           .da_log = a_log_.grad_to_add_to(ops)});
  ops.convolution_backward({.in = convolution(pass, kept),
                            .dy = dconvolved,
                            .dx = convolution_of(dprojected),
                            .dweight = conv_.grad_to_add_to(ops)});
  gate_up_.backward(ops, kept.gate_latent, dgate, dgate_latent);
  decay_up_.backward(ops, kept.decay_latent, dsteps, ddecay_latent);
  in_.backward(ops, x, dprojected, dx);
  decay_down_.backward(ops, x, ddecay_latent, dx, /*accumulate=*/true);
  gate_down_.backward(ops, x, dgate_latent, dx, /*accumulate=*/true);
}

}  // namespace nmoe
