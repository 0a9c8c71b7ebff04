#include "model/parts/gated_deltanet.h"

#include "model/spec/gated_deltanet.h"
#include "model/spec/names.h"

namespace nmoe {
namespace {

// Columns [first, first + heads * size) of rows, in heads.
Tensor columns_in_heads(Tensor rows, int64_t first, int64_t heads, int64_t size) {
  return rows.columns(first, first + heads * size).reshape({rows.dim(0), heads, size});
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const LayerPart& part, WeightSet& weights)
    : config_(part.config.gated_deltanet),
      layer_(part.layer),
      in_(weights, gated_deltanet_prefix(part), {"z", "q", "k", "v", "b", "a"}),
      out_(weights, gated_deltanet_prefix(part) + "out"),
      norm_(weights, gated_deltanet_prefix(part) + "norm", part.config.norm_eps),
      conv_(weights.at(gated_deltanet_prefix(part) + "conv")),
      dt_bias_(weights.at(gated_deltanet_prefix(part) + "dt_bias")),
      a_log_(weights.at(gated_deltanet_prefix(part) + "a_log")) {}

Tensor GatedDeltaNet::gate(Tensor projected) const { return projected.columns(0, config_.value_width()); }
Tensor GatedDeltaNet::convolution_of(Tensor projected) const {
  return projected.columns(config_.value_width(), config_.value_width() + config_.conv_channels());
}
Tensor GatedDeltaNet::b_of(Tensor projected) const {
  const int64_t end = projected.dim(1) - config_.num_value_heads;
  return projected.columns(end - config_.num_value_heads, end);
}
Tensor GatedDeltaNet::a_of(Tensor projected) const {
  return projected.columns(projected.dim(1) - config_.num_value_heads, projected.dim(1));
}
Tensor GatedDeltaNet::q_of(Tensor convolved) const {
  return columns_in_heads(convolved, 0, config_.num_key_heads, config_.key_head_dim);
}
Tensor GatedDeltaNet::k_of(Tensor convolved) const {
  return columns_in_heads(convolved, config_.key_width(), config_.num_key_heads, config_.key_head_dim);
}
Tensor GatedDeltaNet::v_of(Tensor convolved) const {
  return columns_in_heads(convolved, 2 * config_.key_width(), config_.num_value_heads, config_.value_head_dim);
}

ConvolutionInputs GatedDeltaNet::convolution(const Pass& pass, const Kept& kept) const {
  return {.num_seqs = pass.batch.num_seqs,
          .seq_len = pass.batch.seq_len,
          .x = convolution_of(kept.projected),
          .weight = conv_.value,
          .cu_seqlens = pass.batch.cu_seqlens};
}

DeltaRuleInputs GatedDeltaNet::rule(const Pass& pass, const Kept& kept) const {
  return {.num_seqs = pass.batch.num_seqs,
          .seq_len = pass.batch.seq_len,
          .q = q_of(kept.convolved),
          .k = k_of(kept.convolved),
          .v = v_of(kept.convolved),
          .b = b_of(kept.projected),
          .a = a_of(kept.projected),
          .dt_bias = dt_bias_.value,
          .a_log = a_log_.value,
          .cu_seqlens = pass.batch.cu_seqlens};
}

GatedDeltaNet::Kept GatedDeltaNet::project(const Pass& pass, const Rows& x) const {
  const int64_t T = x.tensor().dim(0), W = config_.value_width();
  Kept kept;
  kept.projected = pass.push({T, W + config_.conv_channels() + 2 * config_.num_value_heads});
  kept.convolved = pass.push({T, config_.conv_channels()});
  kept.scanned = pass.push({T, config_.num_value_heads, config_.value_head_dim});
  kept.normed = pass.push({T, W});
  kept.gated = pass.push({T, W});
  in_.forward(pass.ops, x, kept.projected);
  return kept;
}

void GatedDeltaNet::finish(const Pass& pass, Kept& kept, Tensor residual, Tensor y) const {
  pass.capture(Intermediate::kAttentionHeads, layer_, kept.scanned);
  kept.norm = norm_.forward(pass, kept.scanned, kept.normed.reshape(kept.scanned.shape()));
  pass.ops.gate_forward(
      {.function = GateFunction::kSilu, .x = kept.normed, .gate = gate(kept.projected), .y = kept.gated});
  out_.forward(pass.ops, kept.gated, y, residual);
}

Application GatedDeltaNet::forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const {
  NMOE_CHECK(!pass.batch.parents.defined(), "a delta rule over a tree of texts");
  Kept kept = project(pass, x);
  pass.ops.convolution_forward({.in = convolution(pass, kept), .y = kept.convolved});
  pass.ops.delta_rule_forward({.in = rule(pass, kept), .y = kept.scanned});
  finish(pass, kept, residual, y);
  return Application(kept);
}

void GatedDeltaNet::cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor residual,
                                   Tensor y) const {
  const auto state = [&](GatedDeltaNetState which) { return states.fixed[static_cast<size_t>(which)]; };
  Kept kept = project(pass, x);
  pass.ops.cached_convolution({.x = convolution_of(kept.projected),
                               .weight = conv_.value,
                               .slots = slots,
                               .positions = pass.batch.positions,
                               .rows = state(GatedDeltaNetState::kConvolution),
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
                              .states = state(GatedDeltaNetState::kState),
                              .y = kept.scanned});
  finish(pass, kept, residual, y);
}

void GatedDeltaNet::backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const {
  const auto& kept = of.as<Kept>();
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const Tensor dprojected = pass.push(kept.projected.shape()), dconvolved = pass.push(kept.convolved.shape());
  const Tensor dgated = pass.push(kept.gated.shape()), dscanned = dgated.reshape(kept.scanned.shape());
  out_.backward(ops, kept.gated, dy, dgated);
  ops.gate_backward({.function = GateFunction::kSilu,
                     .x = kept.normed,
                     .gate = gate(kept.projected),
                     .dy = dgated,
                     .dx = dgated,
                     .dgate = gate(dprojected)});
  norm_.backward(pass, kept.norm, dscanned, dscanned);
  ops.delta_rule_backward({.in = rule(pass, kept),
                           .dy = dscanned,
                           .dq = q_of(dconvolved),
                           .dk = k_of(dconvolved),
                           .dv = v_of(dconvolved),
                           .db = b_of(dprojected),
                           .da = a_of(dprojected),
                           .ddt_bias = dt_bias_.grad_to_add_to(ops),
                           .da_log = a_log_.grad_to_add_to(ops)});
  ops.convolution_backward({.in = convolution(pass, kept),
                            .dy = dconvolved,
                            .dx = convolution_of(dprojected),
                            .dweight = conv_.grad_to_add_to(ops)});
  in_.backward(ops, x, dprojected, dx);
}

}  // namespace nmoe
