#include "model/moe.h"

#include "model/attention.h"

namespace nmoe {
namespace {

// One matrix per expert, started like the plain matrix of the same role.
Parameter expert_parameter(Parameter matrix, int64_t num_experts) {
  matrix.group = ParameterGroup::kExperts;
  matrix.shape = {num_experts, matrix.shape[0], matrix.shape[1]};
  return matrix;
}

}  // namespace

Moe::Moe(const ModelConfig& config, ParameterSet& parameters, const std::string& name)
    : config_(config),
      name_(name),
      w_router_(parameters.add({.name = name + "router",
                                .shape = {config.moe.num_experts, config.dim},
                                .group = ParameterGroup::kRouter,
                                .decay = false,
                                .init_std = config.init.router_std})),
      router_bias_(parameters.add({.name = name + "router_bias",
                                   .shape = {config.moe.num_experts},
                                   .group = ParameterGroup::kBuffer,
                                   .decay = false,
                                   .is_stat = true,
                                   .init = InitKind::kZeros})),
      w_in_(parameters.add(
          expert_parameter(matrix_parameter(config, name + "experts_in",
                                            pre_activation_width(config.activation, config.moe.expert_dim), config.dim),
                           config.moe.num_experts))),
      w_out_(parameters.add(expert_parameter(
          output_parameter(config, name + "experts_out", config.dim, config.moe.expert_dim), config.moe.num_experts))) {
  if (config.moe.num_shared_experts > 0) {
    shared_.emplace(config, parameters, name + "shared.", config.moe.num_shared_experts * config.moe.expert_dim);
  }
}

void Moe::allocate_stats(Arena& arena) {
  stats_ = {.counts = arena.allocate(DType::kI32, {config_.moe.num_experts}),
            .aux_loss = arena.allocate(DType::kF64, {2}),
            .entropy = arena.allocate(DType::kF64, {1})};
}

RouterRule Moe::rule() const {
  const MoeConfig& moe = config_.moe;
  return {.score = moe.score,
          .top_k = moe.top_k,
          .num_groups = moe.num_groups,
          .top_groups = moe.top_groups,
          .normalise = moe.normalise_weights,
          .scale = moe.routed_scale};
}

RouterLoss Moe::loss(const Pass& pass) const {
  return {.balance = config_.moe.balance_loss / static_cast<double>(pass.scale.num_seqs),
          .z = config_.moe.z_loss / static_cast<double>(pass.scale.num_tokens),
          .seq_len = pass.batch.seq_len};
}

void Moe::forward(const Pass& pass, Tensor x, Tensor y) {
  Ops& ops = pass.ops;
  const MoeConfig& moe = config_.moe;
  const int64_t T = x.dim(0), D = config_.dim, E = moe.num_experts, K = moe.top_k, R = T * K, F = moe.expert_dim,
                W = pre_activation_width(config_.activation, F);
  saved_ = {.x = x,
            .logits = pass.push_stat({T, E}),
            .scores = pass.push_stat({T, E}),
            .top_idx = pass.push_i32({T, K}),
            .weights = pass.push_stat({T, K}),
            .plan = {.offsets = pass.push_i32({E + 1}), .row_of = pass.push_i32({T, K})},
            .row_weight = pass.push_stat({R}),
            .rows = {},
            .pre = {},
            .hidden = {}};
  const int64_t router_only = pass.activations.mark();
  saved_.rows = pass.push({R, D});
  saved_.pre = pass.push({R, W});
  const int64_t without_hidden = pass.activations.mark();
  saved_.hidden = pass.push({R, F});

  ops.linear_forward({x, w_router_.value, saved_.logits});
  pass.look(name_, "logits", saved_.logits);
  ops.router_forward({.rule = rule(),
                      .loss = pass.statistics ? loss(pass) : RouterLoss{},
                      .logits = saved_.logits,
                      .bias = router_bias_.value,
                      .scores = saved_.scores,
                      .top_idx = saved_.top_idx,
                      .weights = saved_.weights,
                      .aux_loss = stats_.aux_loss,
                      .entropy = pass.statistics ? stats_.entropy : Tensor()});
  pass.look(name_, "gate_weights", saved_.weights);
  ops.build_moe_plan({saved_.top_idx, saved_.plan, pass.statistics ? stats_.counts : Tensor()});
  ops.moe_dispatch({x, saved_.plan, saved_.rows});
  ops.moe_dispatch_weights({saved_.weights, saved_.plan, saved_.row_weight});

  // Experts. Their gate weight is applied to the hidden units, so that combine is a plain sum and the experts'
  // outputs need not be kept for the gate's gradient.
  ops.grouped_activation_forward({config_.activation, saved_.rows, w_in_.value, saved_.plan.offsets, saved_.row_weight,
                                  saved_.pre, saved_.hidden});
  pass.look(name_, "expert_hidden", saved_.hidden);
  {
    const ArenaScope scope(pass.activations);
    const Tensor rows_out = pass.push({R, D});
    ops.grouped_linear_forward({saved_.hidden, w_out_.value, saved_.plan.offsets, rows_out});
    ops.moe_combine({rows_out, saved_.plan, y, /*accumulate=*/true});
  }
  if (pass.drops(Recompute::kNorms)) {
    pass.activations.rewind(pass.drops(Recompute::kExperts) ? router_only : without_hidden);
  }
  if (shared_) shared_->forward(pass, x, y);
}

void Moe::backward(const Pass& pass, Tensor dy, Tensor dx) {
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const int64_t T = dy.dim(0), D = config_.dim, E = config_.moe.num_experts, K = config_.moe.top_k, R = T * K,
                F = config_.moe.expert_dim;
  if (shared_) shared_->backward(pass, dy, dx);

  // What was not kept. The router's decisions always are: rows go where they went.
  if (pass.drops(Recompute::kExperts)) {
    saved_.rows = pass.push(saved_.rows.shape());
    saved_.pre = pass.push(saved_.pre.shape());
    saved_.hidden = pass.push(saved_.hidden.shape());
    ops.moe_dispatch({saved_.x, saved_.plan, saved_.rows});
    ops.grouped_activation_forward({config_.activation, saved_.rows, w_in_.value, saved_.plan.offsets,
                                    saved_.row_weight, saved_.pre, saved_.hidden});
  } else if (pass.drops(Recompute::kNorms)) {
    saved_.hidden = pass.push(saved_.hidden.shape());
    ops.activation_forward({config_.activation, saved_.pre, saved_.row_weight, saved_.hidden});
  }

  // Combine's backward is a dispatch.
  const Tensor drows = pass.push({R, D});
  const Tensor dhidden = pass.push({R, F});
  const Tensor drow_weight = pass.push_stat({R});
  ops.moe_dispatch({dy, saved_.plan, drows});
  ops.grouped_linear_backward_weight({saved_.hidden, drows, saved_.plan.offsets, w_out_.grad, pass.accumulate_grads});
  ops.grouped_linear_backward_input({drows, w_out_.value, saved_.plan.offsets, dhidden});

  const Tensor dpre = saved_.pre;  // not needed after its gradient is known
  ops.activation_backward({config_.activation, saved_.pre, saved_.row_weight, dhidden, dpre, drow_weight});
  ops.grouped_linear_backward_weight({saved_.rows, dpre, saved_.plan.offsets, w_in_.grad, pass.accumulate_grads});
  ops.grouped_linear_backward_input({dpre, w_in_.value, saved_.plan.offsets, drows});
  // Dispatch's backward is a combine.
  ops.moe_combine({drows, saved_.plan, dx, /*accumulate=*/shared_.has_value()});

  const Tensor dweights = pass.push_stat({T, K});
  const Tensor dlogits = pass.push({T, E});
  ops.moe_combine_weights({drow_weight, saved_.plan, dweights});
  ops.router_backward({.rule = rule(),
                       .loss = loss(pass),
                       .logits = saved_.logits,
                       .scores = saved_.scores,
                       .top_idx = saved_.top_idx,
                       .weights = saved_.weights,
                       .dweights = dweights,
                       .dlogits = dlogits});
  ops.linear_backward_weight({saved_.x, dlogits, w_router_.grad, pass.accumulate_grads});
  ops.linear_backward_input({dlogits, w_router_.value, dx, /*accumulate=*/true});
}

}  // namespace nmoe
