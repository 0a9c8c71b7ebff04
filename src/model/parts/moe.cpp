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
  const std::string prefix = moe_prefix(part);
  if (config_.moe.latent_dim > 0) {
    latent_.emplace(Linear(weights, prefix + "latent_down"), Linear(weights, prefix + "latent_up"));
  }
  if (config_.moe.biases) {
    biases_.emplace(Bias(weights, prefix + "logit_bias"), GroupedBias(weights, prefix + "experts_in_bias"),
                    GroupedBias(weights, prefix + "experts_out_bias"));
  }
  if (config_.moe.num_shared_experts > 0) shared_.emplace(part, weights);
}

std::vector<Weight*> Moe::weights_per_expert() const {
  std::vector<Weight*> weights = {&experts_in_.weight(), &experts_out_.weight()};
  if (biases_) weights.insert(weights.end(), {&biases_->in.weight(), &biases_->out.weight()});
  return weights;
}

void Moe::forward_logits(const Pass& pass, Tensor x, Tensor logits) const {
  const ArenaScope scope(pass.activations);
  router_.forward(pass.ops, x, logits, biases_ ? biases_->logits.forward_stat(pass, x.dim(0)) : Tensor());
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

Moe::Kept Moe::route(const Pass& pass, Tensor x) const {
  Ops& ops = pass.ops;
  const int64_t T = x.dim(0), E = config_.moe.num_experts, K = config_.moe.top_k;
  Kept kept;
  kept.logits = pass.push_stat({T, E});
  kept.scores = pass.push_stat({T, E});
  kept.top_idx = pass.push_i32({T, K});
  kept.weights = pass.push_stat({T, K});
  forward_logits(pass, x, kept.logits);
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
  return kept;
}

Application Moe::forward(const Pass& pass, const Rows& x, Tensor residual, Tensor y) const {
  const ExchangePass exchange_of = exchange_pass(pass);
  const int64_t F = expert_dim_, W = pre_activation_width(config_.activation, F);
  Kept kept = route(pass, x.tensor());
  if (latent_) {
    const Shape shape({x.tensor().dim(0), travel_dim_});
    kept.latent = pass.push(shape);
    kept.combined = pass.push(shape);
    latent_->down.forward(pass.ops, x.tensor(), kept.latent);
  }
  kept.exchange = exchange_->plan(exchange_of, kept.top_idx, pass.statistics ? stats_.counts : Tensor());
  const RoutedRows& routed = kept.exchange->routed();
  const int64_t R = routed.capacity;
  kept.exchange->begin_dispatch(exchange_of, latent_ ? Rows(kept.latent) : x, kept.weights);
  if (shared_) {
    kept.shared = shared_->forward(pass, x, residual, y);
  } else if (!latent_ && residual.raw() != y.raw()) {
    pass.ops.copy({.source = residual, .destination = y});
  }
  kept.row_weight = pass.push_stat({R});
  const WaitingScope scope(pass.keep, pass.activations, Site::kExpertRows);
  const Rows arrived = kept.exchange->end_dispatch(exchange_of, kept.row_weight);
  kept.x = pass.keep.put(Site::kExpertRows, arrived);
  kept.pre = pass.keep.put(Site::kPreActivation, {R, W});
  // Chunks of overflow want hidden units as they are.
  const bool in_columns = routed.chunk_capacity() == 0;
  kept.hidden = pass.keep.put(Site::kHidden, {R, F}, in_columns ? columns_of(experts_out_, routed) : ColumnForm{});
  if (latent_) {
    forward_experts(pass, kept, arrived, kept.combined, /*accumulate=*/false);
    add_latent(pass, kept.combined, shared_ ? y : residual, y);
  } else {
    forward_experts(pass, kept, arrived, y, /*accumulate=*/true);
  }
  return Application(kept);
}

// Out of place, where a product is not rounded before it is added (cuBLASLt).
void Moe::add_latent(const Pass& pass, Tensor combined, Tensor base, Tensor y) const {
  if (base.raw() != y.raw()) return latent_->up.forward(pass.ops, combined, y, base);
  const ArenaScope scope(pass.activations);
  const Tensor sum = pass.push(y.shape());
  latent_->up.forward(pass.ops, combined, sum, base);
  pass.ops.copy({.source = sum, .destination = y});
}

void Moe::forward_experts(const Pass& pass, const Kept& kept, const Rows& x, Tensor y, bool accumulate) const {
  const RoutedRows& routed = kept.exchange->routed();
  const int64_t R = routed.capacity;
  const ArenaScope scope(pass.activations);
  ExpertRows rows{.x = x,
                  .row_weight = kept.row_weight,
                  .pre = made_room(pass, kept.pre.rows, R),
                  .hidden = pass.keep.with_values(kept.hidden)};
  rows.hidden.quantised = experts_out_.push_codes(pass, R, expert_dim_);
  const bool reads_hidden = !rows.hidden.quantised.defined() || kept.hidden.as == KeptAs::kValues ||
                            pass.watchers.inspect != nullptr || experts_out_.weight().probe.measures_forward();
  for (const RaggedRows& part : routed.parts) {
    forward_hidden(pass, part, rows, reads_hidden);
    pass.capture(Intermediate::kExpertHidden, layer_, part.of(rows.hidden.tensor()), part.count());
  }
  const Tensor rows_out = pass.push({R, travel_dim_});
  for (const RaggedRows& part : routed.parts) {
    experts_out_.forward(pass.ops, part.of(rows.hidden), part.offsets, part.of(rows_out),
                         out_bias(part.of(rows.row_weight)));
  }
  kept.exchange->combine(exchange_pass(pass), rows_out, y, accumulate, overflow_forward(pass, kept, rows, rows_out));
}

Rows Moe::made_room(const Pass& pass, const Rows& pre, int64_t num_rows) const {
  const bool writes_codes = pre.quantised.defined() && experts_in_.weight().copies.takes_codes(pass.ops);
  if (writes_codes || pre.has_values()) return pre;
  return {pass.push({num_rows, pre_activation_width(config_.activation, expert_dim_)}), pre.quantised};
}

// The experts' gate weight is applied to the hidden units, so that combine is a plain sum and the experts' outputs need
// not be kept for the gate's gradient.
void Moe::forward_hidden(const Pass& pass, const RaggedRows& part, const ExpertRows& rows, bool reads_hidden) const {
  experts_in_.forward_activation(pass.ops, config_.activation, part.of(rows.x), part.offsets, part.of(rows.row_weight),
                                 part.of(rows.pre), part.of(rows.hidden), reads_hidden, in_bias());
}

void Moe::backward(const Pass& pass, const Application& of, Tensor x, const Rows& dy, Tensor dx) const {
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const auto& kept = of.as<Kept>();
  const ExchangePass exchange_of = exchange_pass(pass);
  RoutedExchange& exchange = *kept.exchange;
  const RoutedRows& routed = exchange.routed();
  const int64_t T = x.dim(0), E = config_.moe.num_experts, K = config_.moe.top_k, R = routed.capacity;

  const Tensor travelling = latent_ ? kept.latent : x;

  // What did not wait. The router's decisions always do: rows go where they went.
  ExpertRows rows{.x = kept.x.rows,
                  .row_weight = kept.row_weight,
                  .pre = pass.keep.get(kept.pre),
                  .hidden = pass.keep.get(kept.hidden)};
  bool makes_hidden = !kept.hidden.wait();
  if (!kept.x.wait()) {
    exchange.begin_dispatch(exchange_of, travelling, kept.weights);
    rows.x = exchange.end_dispatch(exchange_of, kept.row_weight);
    const ArenaScope forward_alone(pass.activations);
    ExpertRows again = rows;
    again.pre = made_room(pass, rows.pre, R);
    if (rows.pre.quantised.defined()) {
      again.hidden = pass.push({R, expert_dim_});  // not those that backward makes of what is quantised
    } else {
      makes_hidden = false;
    }
    for (const RaggedRows& part : routed.parts) forward_hidden(pass, part, again);
  }

  // Overflow alone wants tokens once more, where forward's were the last.
  const bool wants_tokens = routed.chunk_capacity() > 0 && kept.x.wait();
  Rows dy_combined = dy;
  if (latent_) {
    dy_combined = pass.push(travelling.shape());
    latent_->up.backward(ops, kept.combined, dy.tensor(), dy_combined.tensor());
  }
  exchange.begin_combine_backward(exchange_of, dy_combined, wants_tokens ? Rows(travelling) : Rows(),
                                  wants_tokens ? kept.weights : Tensor());
  if (shared_) shared_->backward(pass, kept.shared, x, dy, dx);
  ExpertGradients gradients{
      .dy = {}, .dpre = {}, .dx = pass.push({R, travel_dim_}), .drow_weight = pass.push_stat({R})};
  gradients.dy = exchange.end_combine_backward(exchange_of, gradients.dx);
  gradients.dpre = gradient_room(pass, routed, rows.pre);
  if (makes_hidden) gradients.hidden = rows.hidden;
  for_each_part(routed, [&](const RaggedRows& part) { backward_experts(pass, part, rows, gradients); });
  exchange.begin_dispatch_backward(exchange_of, gradients.dx, gradients.drow_weight);
  for_each_part(routed, [&](const RaggedRows& part) { backward_in_weight(pass, part, rows, gradients); });
  const Tensor dweights = pass.push_stat({T, K});
  const Tensor dlogits = pass.push({T, E});
  const bool adds = shared_.has_value();
  const Tensor dtravelling = latent_ ? pass.push(travelling.shape()) : dx;
  exchange.end_dispatch_backward(exchange_of, dtravelling, dweights, adds && !latent_,
                                 overflow_backward(pass, routed, rows, gradients));
  if (latent_) latent_->down.backward(ops, x, dtravelling, dx, adds);
  ops.router_backward({.rule = rule(),
                       .loss = loss(pass),
                       .logits = kept.logits,
                       .scores = kept.scores,
                       .top_idx = kept.top_idx,
                       .weights = kept.weights,
                       .dweights = dweights,
                       .dlogits = dlogits});
  if (biases_) biases_->logits.backward(ops, dlogits);
  router_.backward(ops, x, dlogits, dx, /*accumulate=*/true);
}

// The gradient takes the place of pre-activations, where these are there as values. Else it has values only if somebody
// reads them: the first weight's gradient, unless it takes columns; or a check of precision, for which the memory of
// that gradient will do, as it is written later.
Rows Moe::gradient_room(const Pass& pass, const RoutedRows& routed, const Rows& pre) const {
  const Shape shape({routed.capacity, pre_activation_width(config_.activation, expert_dim_)});
  Weight& weight = experts_in_.weight();
  const ColumnCodes columns = push_column_codes(pass.activations, columns_of(experts_in_, routed), shape[1]);
  if (pre.has_values()) return {pre.values, {}, columns};
  if (!columns.defined()) return pass.push(shape);
  if (!weight.probe.measures_gradient()) return {{}, {}, columns};
  return {weight.room_before_grad(pass.activations, pass.ops.compute_dtype(), shape), {}, columns};
}

void Moe::backward_experts(const Pass& pass, const RaggedRows& part, const ExpertRows& rows,
                           const ExpertGradients& gradients) const {
  Ops& ops = pass.ops;
  const ArenaScope scope(pass.activations);
  const Rows dy = part.of(gradients.dy), pre = part.of(rows.pre), made = part.of(gradients.hidden);
  Rows dpre = part.of(gradients.dpre);
  dpre.quantised =
      experts_in_.push_codes(pass, part.end - part.begin, pre_activation_width(config_.activation, expert_dim_));
  // Random bits are numbered in the order in which they are drawn.
  const OperandRounding of_out_weight = experts_out_.weight().weight_gradient_rounding();
  experts_out_.backward_activation(ops, dy,
                                   {.kind = config_.activation,
                                    .dy = {},
                                    .w = {},
                                    .offsets = part.offsets,
                                    .pre = pre.tensor(),
                                    .row_weight = part.of(rows.row_weight),
                                    .dpre = dpre.tensor(),
                                    .drow_weight = part.of(gradients.drow_weight),
                                    .dpre_codes = dpre.quantised,
                                    .dpre_columns = dpre.columns,
                                    .keeps_dpre = experts_in_.weight().probe.measures_gradient(),
                                    .h = made.tensor(),
                                    .pre_codes = pre.quantised,
                                    .h_columns = made.columns});
  if (biases_) {
    biases_->out.backward(ops, dy, part.offsets, part.of(rows.row_weight), part.of(gradients.drow_weight));
    biases_->in.backward(ops, dpre, part.offsets);
  }
  experts_out_.backward_weight(pass, part.of(rows.hidden), dy, part.offsets, of_out_weight);
  experts_in_.backward_input(ops, dpre, part.offsets, part.of(gradients.dx));
}

void Moe::backward_in_weight(const Pass& pass, const RaggedRows& part, const ExpertRows& rows,
                             const ExpertGradients& gradients) const {
  Rows dpre = part.of(gradients.dpre);
  if (dpre.columns.defined()) dpre.values = {};  // which may be where the gradient is written
  experts_in_.backward_weight(pass, part.of(rows.x), dpre, part.offsets,
                              experts_in_.weight().weight_gradient_rounding());
}

ColumnForm Moe::columns_of(const GroupedLinear& layer, const RoutedRows& routed) {
  const auto num_parts = static_cast<int64_t>(routed.parts.size());
  return layer.columns(num_parts, routed.capacity / num_parts);
}

template <class Work>
void Moe::for_each_part(const RoutedRows& routed, const Work& work) const {
  for (const RaggedRows& part : routed.parts) {
    for (Weight* weight : expert_weights()) weight->copies.begin_part(part.part);
    work(part);
  }
}

OverflowPass Moe::overflow_forward(const Pass& pass, const Kept& kept, const ExpertRows& served,
                                   Tensor rows_out) const {
  const int64_t C = kept.exchange->routed().chunk_capacity(), F = expert_dim_;
  if (C == 0) return {};
  const auto room = [&](const KeptRows& of, const Rows& made, int64_t width) {
    const bool has_served = of.as != KeptAs::kValues && made.has_values();
    return has_served ? made.tensor().rows(0, C) : pass.push({C, width});
  };
  const ExpertRows chunk_rows{.x = rows_out.rows(0, C),
                              .row_weight = pass.push_stat({C}),
                              .pre = room(kept.pre, served.pre, pre_activation_width(config_.activation, F)),
                              .hidden = room(kept.hidden, served.hidden, F)};
  return {.rows = chunk_rows.x.tensor(),
          .row_weight = chunk_rows.row_weight,
          .drows = {},
          .drow_weight = {},
          .run = [this, &pass, chunk_rows](const RaggedRows& chunk) {
            forward_hidden(pass, chunk, chunk_rows);
            pass.capture(Intermediate::kExpertHidden, layer_, chunk_rows.hidden.tensor(), chunk.count());
            experts_out_.forward(pass.ops, chunk_rows.hidden, chunk.offsets, chunk_rows.x.tensor(),
                                 out_bias(chunk_rows.row_weight));
          }};
}

OverflowPass Moe::overflow_backward(const Pass& pass, const RoutedRows& routed, const ExpertRows& rows,
                                    const ExpertGradients& gradients) const {
  const int64_t C = routed.chunk_capacity();
  if (C == 0) return {};
  const RaggedRows& first = routed.overflow.front();
  // Not the memory of the weight's gradient.
  const bool has_room = rows.pre.has_values() || !gradients.dpre.columns.defined();
  const Tensor pre = has_room ? gradients.dpre.tensor().rows(0, C)
                              : pass.push({C, pre_activation_width(config_.activation, expert_dim_)});
  const ExpertRows chunk_rows{.x = rows.x.tensor().rows(0, C),
                              .row_weight = rows.row_weight.rows(0, C),
                              .pre = {pre, first.of(rows.pre.quantised)},
                              .hidden = rows.hidden.tensor().rows(0, C)};
  ExpertGradients chunk_gradients{.dy = gradients.dx.rows(0, C),
                                  .dpre = pre,
                                  .dx = gradients.dx.rows(0, C),
                                  .drow_weight = gradients.drow_weight.rows(0, C)};
  if (rows.pre.quantised.defined()) chunk_gradients.hidden = chunk_rows.hidden;
  return {.rows = chunk_rows.x.tensor(),
          .row_weight = chunk_rows.row_weight,
          .drows = chunk_gradients.dx,
          .drow_weight = chunk_gradients.drow_weight,
          .run = [this, &pass, chunk_rows, chunk_gradients](const RaggedRows& chunk) {
            forward_hidden(pass, chunk, chunk_rows);
            backward_experts(pass, chunk, chunk_rows, chunk_gradients);
            backward_in_weight(pass, chunk, chunk_rows, chunk_gradients);
          }};
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
  const Tensor choices = pass.push_i32({T, K}), weights = pass.push_stat({T, K});
  forward_logits(pass, x, logits);
  pass.capture(Intermediate::kRouterLogits, layer_, logits);
  ops.route_tokens({.rule = rule(),
                    .logits = logits,
                    .bias = router_bias_.value,
                    .scores = pass.push_stat({T, E}),
                    .top_idx = choices,
                    .weights = weights,
                    .plan = plan,
                    .row_weight = row_weight});
  pass.capture(Intermediate::kExpertChoices, layer_, choices);
  pass.capture(Intermediate::kGateWeights, layer_, weights);
  const Tensor travelling = latent_ ? pass.push({T, travel_dim_}) : x,
               combined = latent_ ? pass.push({T, travel_dim_}) : y;
  if (latent_) latent_->down.forward(ops, x, travelling);
  const Tensor base = latent_ && shared_ ? pass.push(y.shape()) : latent_ ? residual : y;  // what outputs are added to
  if (shared_) {
    shared_->forward(pass, x, residual, base);
  } else if (!latent_ && residual.raw() != y.raw()) {
    ops.copy({.source = residual, .destination = y});
  }
  const Tensor hidden = pass.push({R, F}), rows_out = pass.push({R, travel_dim_});
  experts_in_.forward_activation(ops, config_.activation, OperandRows(travelling, plan.token_of), plan.offsets,
                                 row_weight, pass.push({R, W}), hidden, /*reads_h=*/true, in_bias());
  experts_out_.forward(ops, hidden, plan.offsets, rows_out, out_bias(row_weight));
  ops.moe_combine({.rows = rows_out, .plan = plan, .y = combined, .accumulate = !latent_});
  if (latent_) add_latent(pass, combined, base, y);
}

}  // namespace nmoe
