#include "model/parts/moe.h"

#include "model/spec/moe.h"
#include "model/spec/names.h"

namespace nmoe {
namespace {

ExchangePass exchange_pass(const Pass& pass) {
  return {.ops = pass.ops, .activations = pass.activations, .timed = pass.in_step()};
}

}  // namespace

Moe::Moe(const LayerPart& part, WeightSet& weights)
    : config_(part.config),
      layer_(part.layer),
      travel_dim_(moe_widths(part).travel),
      expert_dim_(moe_widths(part).hidden),
      router_(weights, moe_prefix(part) + "router"),
      router_bias_(weights.at(moe_prefix(part) + "router_bias")),
      experts_in_(weights, moe_prefix(part) + "experts_in"),
      experts_out_(weights, moe_prefix(part) + "experts_out"),
      exchange_(make_local_exchange(config_.moe.num_experts)) {
  const int64_t shared = config_.moe.num_shared_experts;
  if (shared > 0) {
    shared_.emplace(part, shared_experts_prefix(part), shared * expert_dim_, weights, Intermediate::kSharedHidden);
  }
}

CodedRows Moe::sent(const Pass& pass, const CodedRows& x) const {
  if (wire_ == RowFormat::kDevice) return x.rows;
  if (x.codes.defined()) return x;
  const RowCodes codes = push_row_codes(pass.activations, x.rows.dim(0), x.rows.dim(1));
  pass.ops.quantize(quantize_rows(x.rows, codes));
  return {x.rows, codes};
}

RowCodes Moe::codes_of(const ArrivedRows& arrived, const CodedRows& x) const {
  return wire_ == RowFormat::kDevice && arrived.rows.index.defined() ? x.codes : arrived.codes;
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

// The experts' gate weight is applied to the hidden units, so that combine is a plain sum and the experts' outputs need
// not be kept for the gate's gradient.
void Moe::forward_hidden(const Pass& pass, const RaggedRows& part, const ExpertPass& of) const {
  experts_in_.forward_activation(pass.ops,
                                 {.kind = config_.activation,
                                  .x = part.of(of.rows),
                                  .w = {},
                                  .offsets = part.offsets,
                                  .row_weight = part.of(of.row_weight),
                                  .pre = part.of(of.pre),
                                  .h = of.hidden.defined() ? part.of(of.hidden) : Tensor(),
                                  .h_codes = part.of(of.hidden_codes),
                                  .h_columns = of.hidden_columns,
                                  .keeps_h = of.keeps_hidden,
                                  .pre_codes = part.of(of.pre_codes)},
                                 part.of(of.rows, of.source_codes));
}

bool Moe::multiplies_columns(const Kept& kept) const {
  return experts_out_.weight().rounds_gradient_in_fp8() && kept.routed().chunk_capacity() == 0;
}

std::vector<ColumnCodes> Moe::push_columns(const Pass& pass, const Kept& kept, const GroupedLinear& of,
                                           int64_t width) const {
  std::vector<ColumnCodes> columns;
  for (const RaggedRows& part : kept.routed().parts) {
    columns.push_back(of.push_columns(pass.activations, part.end - part.begin, width));
  }
  return columns;
}

void Moe::backward_experts(const Pass& pass, const RaggedRows& part, const ExpertPass& of,
                           const ExpertGradients& gradients) const {
  Ops& ops = pass.ops;
  const OperandRows dy = part.of(gradients.dy);
  const Tensor dpre = part.of(of.pre);  // not needed after its gradient is known
  const ArenaScope scope(pass.activations);
  const RowCodes dpre_codes = experts_in_.push_codes(pass.activations, dpre.dim(0), dpre.dim(1));
  const Tensor hidden = of.hidden.defined() ? part.of(of.hidden) : Tensor();
  // Random bits are numbered in the order in which they are drawn.
  const OperandRounding of_out_weight = experts_out_.weight().weight_gradient_rounding();
  experts_out_.backward_activation(ops,
                                   {.kind = config_.activation,
                                    .dy = dy,
                                    .w = {},
                                    .offsets = part.offsets,
                                    .pre = part.of(of.pre),
                                    .row_weight = part.of(of.row_weight),
                                    .dpre = dpre,
                                    .drow_weight = part.of(gradients.drow_weight),
                                    .dpre_codes = dpre_codes,
                                    .dpre_columns = of.pre_columns,
                                    .keeps_dpre = of.keeps_gradient,
                                    .h = of.makes_hidden && !of.hidden_columns.defined() ? hidden : Tensor(),
                                    .pre_codes = part.of(of.pre_codes),
                                    .h_columns = of.makes_hidden ? of.hidden_columns : ColumnCodes{}},
                                   part.of(gradients.dy, gradients.source_codes));
  experts_out_.backward_weight(ops, hidden, dy, part.offsets, of_out_weight, of.hidden_columns);
  experts_in_.backward_input(ops, dpre, part.offsets, part.of(gradients.drows), dpre_codes);
}

void Moe::backward_in_weight(const Pass& pass, const RaggedRows& part, const ExpertPass& of) const {
  experts_in_.backward_weight(pass.ops, part.of(of.rows), part.of(of.pre), part.offsets,
                              experts_in_.weight().weight_gradient_rounding(), {}, of.pre_columns);
}

void Moe::for_each_part(const Kept& kept, const std::function<void(const RaggedRows&, size_t)>& work) const {
  for (size_t part = 0; part < kept.routed().parts.size(); ++part) {
    for (Weight* weight : expert_weights()) weight->begin_part(static_cast<int64_t>(part));
    work(kept.routed().parts[part], part);
  }
}

OverflowWork Moe::overflow_forward(const Pass& pass, const Kept& kept, Tensor rows_out) const {
  const int64_t C = kept.routed().chunk_capacity();
  if (C == 0) return {};
  // What is not kept has served.
  const auto room = [&](Tensor saved, bool has_served) {
    return has_served ? saved.rows(0, C) : pass.push({C, saved.dim(1)});
  };
  const ExpertPass chunk_rows{.rows = rows_out.rows(0, C),
                              .row_weight = pass.push_stat({C}),
                              .pre = room(kept.pre, pass.drops_pre()),
                              .hidden = room(kept.hidden, pass.drops_hidden())};
  return {.rows = chunk_rows.rows.source,
          .row_weight = chunk_rows.row_weight,
          .drows = {},
          .drow_weight = {},
          .work_off = [this, &pass, chunk_rows](const RaggedRows& chunk) {
            forward_hidden(pass, chunk, chunk_rows);
            pass.capture(Intermediate::kExpertHidden, layer_, chunk_rows.hidden, chunk.count());
            experts_out_.forward(pass.ops, chunk_rows.hidden, chunk.offsets, chunk_rows.rows.source);
          }};
}

OverflowWork Moe::overflow_backward(const Pass& pass, const Kept& kept, const ExpertGradients& gradients) const {
  const int64_t C = kept.routed().chunk_capacity();
  if (C == 0) return {};
  const ExpertPass chunk_rows{.rows = kept.rows.source.rows(0, C),
                              .row_weight = kept.row_weight.rows(0, C),
                              .pre = kept.pre.rows(0, C),
                              .hidden = kept.hidden.rows(0, C),
                              .pre_codes = kept.routed().overflow.front().of(kept.pre_codes),
                              .makes_hidden = pass.saves_codes()};
  const ExpertGradients chunk_gradients{.dy = gradients.drows.rows(0, C),
                                        .drows = gradients.drows.rows(0, C),
                                        .drow_weight = gradients.drow_weight.rows(0, C)};
  return {.rows = chunk_rows.rows.source,
          .row_weight = chunk_rows.row_weight,
          .drows = chunk_gradients.drows,
          .drow_weight = chunk_gradients.drow_weight,
          .work_off = [this, &pass, chunk_rows, chunk_gradients](const RaggedRows& chunk) {
            forward_hidden(pass, chunk, chunk_rows);
            backward_experts(pass, chunk, chunk_rows, chunk_gradients);
            backward_in_weight(pass, chunk, chunk_rows);
          }};
}

void Moe::route(const Pass& pass, Tensor x, const Kept& kept) const {
  Ops& ops = pass.ops;
  router_.forward(ops, x, kept.logits);
  pass.capture(Intermediate::kRouterLogits, layer_, kept.logits);
  ops.router_forward({.rule = rule(),
                      .loss = pass.statistics ? loss(pass) : RouterLoss{},
                      .logits = kept.logits,
                      .bias = router_bias_.value,
                      .scores = kept.scores,
                      .top_idx = kept.top_idx,
                      .weights = kept.weights,
                      .aux_loss = stats_.aux_loss,
                      .entropy = pass.statistics ? stats_.entropy : Tensor()});
  pass.capture(Intermediate::kExpertChoices, layer_, kept.top_idx);
  pass.capture(Intermediate::kGateWeights, layer_, kept.weights);
}

void Moe::forward_experts(const Pass& pass, const Kept& kept, const RowCodes& source_codes, Tensor y) const {
  Ops& ops = pass.ops;
  const int64_t R = kept.routed().capacity;
  const ArenaScope scope(pass.activations);
  const RowCodes hidden_codes = experts_out_.push_codes(pass.activations, R, expert_dim_);
  const bool keeps_columns = !kept.hidden_columns.empty();
  // Whether nobody reads hidden units but as codes.
  const bool codes_alone = hidden_codes.defined() && (keeps_columns || pass.drops_hidden()) && !pass.watchers.inspect &&
                           !experts_out_.weight().measures_forward();
  for (size_t i = 0; i < kept.routed().parts.size(); ++i) {
    const RaggedRows& part = kept.routed().parts[i];
    ExpertPass rows = kept.expert_rows();
    rows.hidden_codes = hidden_codes;
    rows.source_codes = source_codes;
    rows.keeps_hidden = !codes_alone;
    if (codes_alone && keeps_columns) rows.hidden_columns = kept.hidden_columns[i], rows.hidden = {};
    forward_hidden(pass, part, rows);
    if (keeps_columns && !codes_alone) {
      ops.activation_forward({.kind = config_.activation,
                              .pre = part.of(kept.pre),
                              .row_weight = part.of(kept.row_weight),
                              .h = {},
                              .num_rows = part.count(),
                              .h_columns = kept.hidden_columns[i],
                              .offsets = part.offsets});
    }
    pass.capture(Intermediate::kExpertHidden, layer_, part.of(kept.hidden), part.count());
  }
  const Tensor rows_out = pass.push({R, travel_dim_});
  for (const RaggedRows& part : kept.routed().parts) {
    experts_out_.forward(ops, part.of(kept.hidden), part.offsets, part.of(rows_out), part.of(hidden_codes));
  }
  kept.exchange->combine(exchange_pass(pass), rows_out, y, /*accumulate=*/true, overflow_forward(pass, kept, rows_out));
}

Application Moe::forward(const Pass& pass, const CodedRows& coded_x, Tensor residual, Tensor y) const {
  Ops& ops = pass.ops;
  const Tensor x = coded_x.rows;
  const int64_t T = x.dim(0), E = config_.moe.num_experts, K = config_.moe.top_k, F = expert_dim_,
                W = pre_activation_width(config_.activation, F);
  Kept kept{.logits = pass.push_stat({T, E}),
            .scores = pass.push_stat({T, E}),
            .top_idx = pass.push_i32({T, K}),
            .weights = pass.push_stat({T, K}),
            .exchange = {},
            .row_weight = {},
            .rows = {},
            .pre = {},
            .pre_codes = {},
            .hidden = {},
            .hidden_columns = {},
            .shared = {}};
  route(pass, x, kept);
  kept.exchange = exchange_->plan(exchange_pass(pass), kept.top_idx, pass.statistics ? stats_.counts : Tensor());
  RoutedExchange& exchange = *kept.exchange;
  const int64_t R = kept.routed().capacity;
  exchange.begin_dispatch(exchange_pass(pass), sent(pass, coded_x), kept.weights);
  if (shared_) {
    kept.shared = shared_->forward(pass, coded_x, residual, y);
  } else if (residual.raw() != y.raw()) {
    ops.copy({.source = residual, .destination = y});
  }
  kept.row_weight = pass.push_stat({R});
  const int64_t router_only = pass.activations.mark();
  const ArrivedRows arrived = exchange.end_dispatch(exchange_pass(pass), kept.row_weight);
  kept.rows = arrived.rows;
  if (pass.keeps_pre_codes()) kept.pre_codes = push_row_codes(pass.activations, R, W);
  const int64_t without_pre = pass.activations.mark();
  kept.pre = pass.push({R, W});
  const bool keeps_columns = multiplies_columns(kept) && !pass.drops_pre();
  if (keeps_columns) kept.hidden_columns = push_columns(pass, kept, experts_out_, F);
  const int64_t without_hidden = pass.activations.mark();
  kept.hidden = pass.push({R, F});
  forward_experts(pass, kept, codes_of(arrived, coded_x), y);
  if (keeps_columns) {
    kept.hidden = {};
    pass.activations.rewind(without_hidden);
    return Application(kept);
  }
  if (pass.drops(Recompute::kExperts)) {
    pass.activations.rewind(router_only);
  } else if (pass.drops_hidden()) {
    pass.activations.rewind(pass.drops_pre() ? without_pre : without_hidden);
  }
  return Application(kept);
}

// A few tokens are routed at once: steps of generation are many short operations.
void Moe::cached_forward(const Pass& pass, Tensor x, const PartStates& /*states*/, Tensor /*slots*/, Tensor residual,
                         Tensor y) const {
  Ops& ops = pass.ops;
  const int64_t T = x.dim(0), E = config_.moe.num_experts, K = config_.moe.top_k, F = expert_dim_,
                W = pre_activation_width(config_.activation, F), R = T * K;
  const Tensor logits = pass.push_stat({T, E}), row_weight = pass.push_stat({R});
  const MoePlan plan{
      .offsets = pass.push_i32({E + 1}), .row_of = pass.push_i32({T, K}), .token_of = pass.push_i32({R})};
  router_.forward(ops, x, logits);
  ops.route_tokens({.rule = rule(),
                    .logits = logits,
                    .bias = router_bias_.value,
                    .scores = pass.push_stat({T, E}),
                    .top_idx = pass.push_i32({T, K}),
                    .weights = pass.push_stat({T, K}),
                    .plan = plan,
                    .row_weight = row_weight});
  if (shared_) {
    shared_->forward(pass, x, residual, y);
  } else if (residual.raw() != y.raw()) {
    ops.copy({.source = residual, .destination = y});
  }
  const Tensor hidden = pass.push({R, F}), rows_out = pass.push({R, travel_dim_});
  experts_in_.forward_activation(ops, {.kind = config_.activation,
                                       .x = OperandRows(x, plan.token_of),
                                       .w = {},
                                       .offsets = plan.offsets,
                                       .row_weight = row_weight,
                                       .pre = pass.push({R, W}),
                                       .h = hidden});
  experts_out_.forward(ops, hidden, plan.offsets, rows_out);
  ops.moe_combine({.rows = rows_out, .plan = plan, .y = y, .accumulate = true});
}

void Moe::backward(const Pass& pass, const Application& of, Tensor x, const CodedRows& coded_dy, Tensor dx) const {
  Ops& ops = pass.ops;
  const Tensor dy = coded_dy.rows;
  const ArenaScope scope(pass.activations);
  Kept kept = of.as<Kept>();
  RoutedExchange& exchange = *kept.exchange;
  const int64_t T = dy.dim(0), E = config_.moe.num_experts, K = config_.moe.top_k, R = kept.routed().capacity;

  // What was not kept. The router's decisions always are: rows go where they went.
  if (pass.drops_pre()) kept.pre = pass.push(kept.pre.shape());
  if (pass.drops(Recompute::kExperts)) {
    exchange.begin_dispatch(exchange_pass(pass), sent(pass, x), kept.weights);
    const ArrivedRows arrived = exchange.end_dispatch(exchange_pass(pass), kept.row_weight);
    kept.rows = arrived.rows;
    kept.hidden = pass.push(kept.hidden.shape());
    if (pass.saves_codes()) kept.pre_codes = push_row_codes(pass.activations, R, kept.pre.dim(1));
    ExpertPass rows = kept.expert_rows();
    rows.source_codes = codes_of(arrived, x);
    for (const RaggedRows& part : kept.routed().parts) forward_hidden(pass, part, rows);
  }
  const bool makes_hidden = pass.saves_codes() || (pass.recompute == Recompute::kNorms && kept.hidden_columns.empty());
  if (pass.saves_codes() && multiplies_columns(kept)) {
    kept.hidden_columns = push_columns(pass, kept, experts_out_, expert_dim_);
    kept.hidden = {};
  } else if (makes_hidden && !pass.drops(Recompute::kExperts)) {
    kept.hidden = pass.push(kept.hidden.shape());
  }

  // Overflow alone wants tokens once more, where forward's were the last.
  const bool wants_tokens = kept.routed().chunk_capacity() > 0 && !pass.drops(Recompute::kExperts);
  exchange.begin_combine_backward(exchange_pass(pass), sent(pass, coded_dy),
                                  wants_tokens ? sent(pass, x) : CodedRows({}), wants_tokens ? kept.weights : Tensor());
  if (shared_) shared_->backward(pass, kept.shared, x, coded_dy, dx);
  ExpertGradients gradients{.dy = {}, .drows = pass.push({R, travel_dim_}), .drow_weight = pass.push_stat({R})};
  const ArrivedRows arrived = exchange.end_combine_backward(exchange_pass(pass), gradients.drows);
  gradients.dy = arrived.rows;
  gradients.source_codes = codes_of(arrived, coded_dy);
  const std::vector<ColumnCodes> pre_columns =
      push_columns(pass, kept, experts_in_, pre_activation_width(config_.activation, expert_dim_));
  const bool keeps_gradient = experts_in_.weight().measures_gradient();
  const auto rows_of_part = [&](size_t part) {
    ExpertPass rows = kept.expert_rows();
    if (!kept.hidden_columns.empty()) rows.hidden_columns = kept.hidden_columns[part];
    rows.pre_columns = pre_columns[part];
    rows.makes_hidden = makes_hidden;
    rows.keeps_gradient = keeps_gradient;
    return rows;
  };
  for_each_part(
      kept, [&](const RaggedRows& rows, size_t part) { backward_experts(pass, rows, rows_of_part(part), gradients); });
  exchange.begin_dispatch_backward(exchange_pass(pass), gradients.drows, gradients.drow_weight);
  for_each_part(kept, [&](const RaggedRows& rows, size_t part) { backward_in_weight(pass, rows, rows_of_part(part)); });
  const Tensor dweights = pass.push_stat({T, K});
  const Tensor dlogits = pass.push({T, E});
  exchange.end_dispatch_backward(exchange_pass(pass), dx, dweights, /*accumulate=*/shared_.has_value(),
                                 overflow_backward(pass, kept, gradients));
  ops.router_backward({.rule = rule(),
                       .loss = loss(pass),
                       .logits = kept.logits,
                       .scores = kept.scores,
                       .top_idx = kept.top_idx,
                       .weights = kept.weights,
                       .dweights = dweights,
                       .dlogits = dlogits});
  router_.backward(ops, x, dlogits, dx, /*accumulate=*/true);
}

}  // namespace nmoe
