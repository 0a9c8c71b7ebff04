#include "model/parts/mamba2.h"

#include "model/spec/mamba2.h"
#include "model/spec/names.h"

namespace nmoe {

Mamba2::Mamba2(const LayerPart& part, WeightSet& weights)
    : config_(part.config.mamba2),
      norm_eps_(part.config.norm_eps),
      layer_(part.layer),
      in_(weights, mamba2_prefix(part), {"z", "x", "b", "c", "dt"}),
      out_(weights, mamba2_prefix(part) + "out"),
      conv_(weights.at(mamba2_prefix(part) + "conv")),
      conv_bias_(weights.at(mamba2_prefix(part) + "conv_bias")),
      dt_bias_(weights.at(mamba2_prefix(part) + "dt_bias")),
      a_log_(weights.at(mamba2_prefix(part) + "a_log")),
      d_(weights.at(mamba2_prefix(part) + "d")),
      norm_(weights.at(mamba2_prefix(part) + "norm")) {}

Tensor Mamba2::gate(Tensor projected) const { return projected.columns(0, config_.width()); }
Tensor Mamba2::convolution_of(Tensor projected) const {
  return projected.columns(config_.width(), config_.width() + config_.conv_channels());
}
Tensor Mamba2::dt(Tensor projected) const {
  return projected.columns(projected.dim(1) - config_.num_heads, projected.dim(1));
}
Tensor Mamba2::x_of(Tensor convolved) const {
  return convolved.columns(0, config_.width()).reshape({convolved.dim(0), config_.num_heads, config_.head_dim});
}
Tensor Mamba2::b_of(Tensor convolved) const {
  const int64_t first = config_.width(), end = first + config_.group_width();
  return convolved.columns(first, end).reshape({convolved.dim(0), config_.num_groups, config_.state_dim});
}
Tensor Mamba2::c_of(Tensor convolved) const {
  const int64_t first = config_.width() + config_.group_width(), end = first + config_.group_width();
  return convolved.columns(first, end).reshape({convolved.dim(0), config_.num_groups, config_.state_dim});
}

ConvolutionInputs Mamba2::convolution(const Pass& pass, const Kept& kept) const {
  return {.num_seqs = pass.batch.num_seqs,
          .seq_len = pass.batch.seq_len,
          .x = convolution_of(kept.projected),
          .weight = conv_.value,
          .bias = conv_bias_.value,
          .cu_seqlens = pass.batch.cu_seqlens};
}

SsdInputs Mamba2::scan(const Pass& pass, const Kept& kept) const {
  return {.num_seqs = pass.batch.num_seqs,
          .seq_len = pass.batch.seq_len,
          .chunk = config_.chunk,
          .x = x_of(kept.convolved),
          .b = b_of(kept.convolved),
          .c = c_of(kept.convolved),
          .dt = dt(kept.projected),
          .dt_bias = dt_bias_.value,
          .a_log = a_log_.value,
          .d = d_.value,
          .cu_seqlens = pass.batch.cu_seqlens};
}

Mamba2::Kept Mamba2::project(const Pass& pass, const Rows& x) const {
  const int64_t T = x.tensor().dim(0), W = config_.width();
  const Kept kept{.projected = pass.push({T, W + config_.conv_channels() + config_.num_heads}),
                  .convolved = pass.push({T, config_.conv_channels()}),
                  .scanned = pass.push({T, W}),
                  .normed = pass.push({T, W}),
                  .rstd = pass.push_stat({T, config_.num_groups})};
  in_.forward(pass.ops, x, kept.projected);
  return kept;
}

void Mamba2::finish(const Pass& pass, const Kept& kept, Tensor residual, Tensor y) const {
  pass.capture(Intermediate::kAttentionHeads, layer_, kept.scanned);
  pass.ops.gated_norm_forward({.x = kept.scanned,
                               .z = gate(kept.projected),
                               .gain = norm_.value,
                               .num_groups = config_.num_groups,
                               .eps = norm_eps_,
                               .y = kept.normed,
                               .rstd = kept.rstd});
  out_.forward(pass.ops, kept.normed, y, residual);
}

Application Mamba2::forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const {
  NMOE_CHECK(!pass.batch.parents.defined(), "a scan over a tree of texts");
  const Kept kept = project(pass, x);
  pass.ops.convolution_forward({.in = convolution(pass, kept), .y = kept.convolved});
  pass.ops.ssd_forward({.in = scan(pass, kept), .y = kept.scanned.reshape(x_of(kept.convolved).shape())});
  finish(pass, kept, residual, y);
  return Application(kept);
}

void Mamba2::cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots, Tensor residual,
                            Tensor y) const {
  const auto state = [&](Mamba2State which) { return states.fixed[static_cast<size_t>(which)]; };
  const Kept kept = project(pass, x);
  pass.ops.cached_convolution({.x = convolution_of(kept.projected),
                               .weight = conv_.value,
                               .bias = conv_bias_.value,
                               .slots = slots,
                               .positions = pass.batch.positions,
                               .rows = state(Mamba2State::kConvolution),
                               .y = kept.convolved});
  const SsdInputs in = scan(pass, kept);
  pass.ops.cached_ssd({.x = in.x,
                       .b = in.b,
                       .c = in.c,
                       .dt = in.dt,
                       .dt_bias = in.dt_bias,
                       .a_log = in.a_log,
                       .d = in.d,
                       .slots = slots,
                       .positions = pass.batch.positions,
                       .states = state(Mamba2State::kState),
                       .open_x = state(Mamba2State::kOpenX),
                       .open_b = state(Mamba2State::kOpenB),
                       .open_step = state(Mamba2State::kOpenStep),
                       .y = kept.scanned.reshape(in.x.shape())});
  finish(pass, kept, residual, y);
}

void Mamba2::backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const {
  const auto& kept = of.as<Kept>();
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const Tensor dprojected = pass.push(kept.projected.shape()), dconvolved = pass.push(kept.convolved.shape());
  const Tensor dscanned = pass.push(kept.scanned.shape());
  out_.backward(ops, kept.normed, dy, dscanned);
  ops.gated_norm_backward({.x = kept.scanned,
                           .z = gate(kept.projected),
                           .gain = norm_.value,
                           .rstd = kept.rstd,
                           .dy = dscanned,
                           .dx = dscanned,
                           .dz = gate(dprojected),
                           .dgain = norm_.grad_to_add_to(ops)});
  ops.ssd_backward({.in = scan(pass, kept),
                    .dy = dscanned.reshape(x_of(kept.convolved).shape()),
                    .dx = x_of(dconvolved),
                    .db = b_of(dconvolved),
                    .dc = c_of(dconvolved),
                    .ddt = dt(dprojected),
                    .ddt_bias = dt_bias_.grad_to_add_to(ops),
                    .da_log = a_log_.grad_to_add_to(ops),
                    .dd = d_.grad_to_add_to(ops)});
  ops.convolution_backward({.in = convolution(pass, kept),
                            .dy = dconvolved,
                            .dx = convolution_of(dprojected),
                            .dweight = conv_.grad_to_add_to(ops),
                            .dbias = conv_bias_.grad_to_add_to(ops)});
  in_.backward(ops, x, dprojected, dx);
}

}  // namespace nmoe
