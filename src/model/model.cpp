#include "model/model.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "model/experts_exchange.h"
#include "model/parts/rope_table.h"
#include "model/upload_reals.h"
#include "rdep/placement.h"

namespace nmoe {
namespace {

std::vector<std::unique_ptr<Block>> make_blocks(const ModelConfig& config, WeightSet& weights,
                                                std::vector<Moe*>& routing) {
  std::vector<std::unique_ptr<Block>> blocks;
  for (const auto& parts : layer_parts(config)) blocks.push_back(std::make_unique<Block>(parts, weights, routing));
  return blocks;
}

std::vector<std::unique_ptr<PredictionModule>> make_modules(const ModelConfig& config, WeightSet& weights,
                                                            std::vector<Moe*>& routing) {
  std::vector<std::unique_ptr<PredictionModule>> modules;
  const std::vector<std::vector<LayerPart>> layers = prediction_parts(config);
  const auto num_modules = static_cast<size_t>(config.mtp.num_modules());
  for (size_t i = 0; i < num_modules; ++i) {
    const size_t count = layers.size() / num_modules;
    modules.push_back(std::make_unique<PredictionModule>(
        static_cast<int64_t>(i), std::span(layers).subspan(i * count, count), weights, routing));
  }
  return modules;
}

// Every row is a sequence of one position.
Batch batch_of(const CachedRows& rows) {
  return {.num_seqs = rows.tokens.dim(0), .seq_len = 1, .tokens = rows.tokens, .positions = rows.positions};
}

}  // namespace

Model::Model(const ModelConfig& config, WeightSet& weights, Ops& ops, int64_t max_positions, PassOptions passes)
    : config_(config),
      ops_(ops),
      max_positions_(max_positions),
      passes_(std::move(passes)),
      spec_(describe_model(config_)),
      weights_(weights),
      embedding_(weights_.at("embedding")),
      blocks_(make_blocks(config_, weights_, moe_layers_)),
      final_norm_(weights_, "final_norm", config_.norm_eps),
      modules_(make_modules(config_, weights_, moe_layers_)),
      head_(weights_, config_.tied_head ? "embedding" : "head") {
  for (Moe* moe : moe_layers_) moe->send_as(passes_.wire);
  for (int64_t layer = 0; layer < std::ssize(blocks_) + config_.mtp.depth; ++layer) {
    keep_.push_back({.recompute = passes_.recompute.of(layer), .saved = passes_.saved.of(layer)});
  }
}

void Model::allocate(Arena& state) {
  if (const auto num_routers = static_cast<int64_t>(moe_layers_.size()); num_routers > 0) {
    router_counts_ = state.allocate(DType::kI32, {num_routers, config_.moe.num_experts});
    router_sums_ = state.allocate(DType::kF64, {num_routers, 3});
    for (int64_t i = 0; i < num_routers; ++i) {
      const Tensor sums = router_sums_[i];
      moe_layers_[static_cast<size_t>(i)]->keep_stats(
          {.counts = router_counts_[i], .aux_loss = sums.rows(0, 2), .entropy = sums.rows(2, 3)});
    }
  }
  std::vector<DescribedPart> parts = spec_.parts();
  std::ranges::move(spec_.prediction_layer_parts(), std::back_inserter(parts));
  for (const DescribedPart& part : parts) {
    const int64_t dim = part.traits.rope_dim;
    if (dim == 0 || rope_.by_dim.contains(dim)) continue;
    const RopeTable table = {.cos = state.allocate(ops_.stat_dtype(), {max_positions_, dim / 2}),
                             .sin = state.allocate(ops_.stat_dtype(), {max_positions_, dim / 2})};
    rope_.by_dim.emplace(dim, table);
    if (ops_.counting()) continue;  // a plan must not cost what is planned
    const RopeAngles angles = rope_angles(config_.rope, config_.yarn, dim, max_positions_);
    upload_reals(ops_, table.cos, angles.cos);
    upload_reals(ops_, table.sin, angles.sin);
  }
}

void Model::keep_inputs_in(Arena& host) {
  inputs_.emplace(ops_.device(), host, std::span(keep_).first(blocks_.size()));
}

void Model::share_experts(Transport& transport, Arena& state, const ExchangeLimits& limits) {
  if (moe_layers_.empty()) return;
  const auto num_layers = static_cast<int64_t>(moe_layers_.size());
  const auto [rank, num_ranks] = weights_.share().data;
  const Received received = weights_.share().updates.in_order ? Received::kApart : Received::kTogether;
  const bool gives_codes =
      std::ranges::any_of(moe_layers_, [](const Moe* moe) { return moe->expert_weights()[0]->copies.codes.defined(); });
  window_.emplace(transport, ops_, exchange_shape(config_), limits,
                  ExchangeForm{.received = received, .dispatch_format = passes_.wire, .gives_codes = gives_codes},
                  state);
  places_ = state.allocate(DType::kI32, {num_layers, config_.moe.num_experts});
  expert_numbers_ = state.allocate(DType::kI32, {num_layers, config_.moe.num_experts / transport.count()});
  const Shape by_transfer({num_ranks, num_layers, static_cast<int64_t>(kTransfers.size())});
  exchange_stats_ = {.traffic = state.allocate(DType::kI32, {num_ranks, num_layers, 2, transport.count()}),
                     .waited = state.allocate(DType::kF64, by_transfer),
                     .lasted = state.allocate(DType::kF64, by_transfer),
                     .exposed = state.allocate(DType::kF64, by_transfer),
                     .lasts_since = state.allocate(DType::kI64, {1}),
                     .exposed_since = state.allocate(DType::kI64, {1})};
  for (int64_t i = 0; i < num_layers; ++i) {
    Moe& moe = *moe_layers_[static_cast<size_t>(i)];
    moe.exchange_by(make_remote_exchange(*window_, moe.layer(), places_[i],
                                         {.traffic = exchange_stats_.traffic[rank][i],
                                          .waited = exchange_stats_.waited[rank][i],
                                          .lasted = exchange_stats_.lasted[rank][i],
                                          .exposed = exchange_stats_.exposed[rank][i],
                                          .lasts_since = exchange_stats_.lasts_since,
                                          .exposed_since = exchange_stats_.exposed_since}));
  }
  place_experts(ExpertPlacement(moe_layers_.size(), places_in_order(config_.moe.num_experts)));
}

void Model::place_experts(const ExpertPlacement& placement) {
  NMOE_CHECK(window_ && placement.size() == moe_layers_.size(), "places of experts in {} layers of {}",
             placement.size(), moe_layers_.size());
  for (size_t i = 0; i < placement.size(); ++i) {
    const Tensor numbers = expert_numbers_[static_cast<int64_t>(i)];
    const std::vector<int32_t> here = experts_at(placement[i], weights_.share().experts.index, numbers.dim(0));
    ops_.device().upload(places_[static_cast<int64_t>(i)], placement[i].data());
    ops_.device().upload(numbers, here.data());
    for (Weight* weight : moe_layers_[i]->weights_per_expert()) {
      weight->shard.place_experts(placement[i], weights_.share().experts.index);
      weight->shard.expert_numbers = numbers;
    }
  }
}

Pass Model::make_pass(const Batch& batch, Arena& activations) const {
  NMOE_CHECK(batch.seq_len <= max_positions_, "sequences of {} positions, tables of {}", batch.seq_len, max_positions_);
  NMOE_CHECK(batch.part.is_whole(batch.seq_len), "positions {} to {} of sequences of {}: attention sees whole ones",
             batch.part.first_position, batch.part.first_position + batch.seq_len, batch.part.whole_len);
  return {.ops = ops_,
          .activations = activations,
          .batch = batch,
          .rope = rope_,
          .keep = Keep(ops_, activations),
          .scale = {.num_seqs = batch.num_seqs, .num_tokens = batch.num_tokens(), .loss = {}},
          .watchers = {.inspect = inspect_}};
}

void Model::begin_step() {
  weights_.begin_step();
  if (moe_layers_.empty()) return;
  ops_.fill({.x = router_counts_, .value = 0.0});
  ops_.fill({.x = router_sums_, .value = 0.0});
  for (const Tensor& tensor : exchange_stats_.tensors()) ops_.fill({.x = tensor, .value = 0.0});
}

// Where the block before that layer, or the embedding, is to write; empty: on the activation stack.
OutputPlace Model::place_of_input(size_t layer) {
  if (!inputs_ || layer >= blocks_.size() || !inputs_->travels(layer)) return {};
  return [this, layer] { return inputs_->place(layer); };
}

void Model::forward_backward(const Batch& batch, const StepScale& scale, Arena& activations, Tensor losses,
                             const Watchers& watchers, Tensor predictions) {
  const ArenaScope scope(activations);
  NMOE_CHECK(inputs_ || !passes_.recompute.any([](Recompute level) { return level == Recompute::kHost; }),
             "inputs of blocks are to wait in the host, and have no memory there");
  weights_.begin_microbatch();
  Pass pass = make_pass(batch, activations);
  pass.scale = scale;
  pass.watchers = watchers;
  const Shape stream({batch.num_tokens(), config_.dim});

  const auto has_codes = [](const Weight& weight) { return weight.copies.codes.defined(); };
  pass.keep.begin(stream, keep_, passes_.wire == RowFormat::kFp8 || std::ranges::any_of(weights_.all(), has_codes));
  const size_t first = weights_.index_of("embedding"), final_norm = weights_.index_of("final_norm");
  const size_t num_weights = weights_.all().size();
  const WeightRange before_blocks{first, first + 1}, after_blocks{final_norm, final_norm + 1},
      head{config_.tied_head ? num_weights : num_weights - 1, num_weights};
  for (const WeightRange& range : {before_blocks, after_blocks, head}) weights_.begin_application(range);
  const Tensor dx = pass.push(stream);  // gradient of the residual stream, all the way down
  if (inputs_) inputs_->begin(activations, ops_.compute_dtype(), stream);
  const OutputPlace place = place_of_input(0);
  Tensor x = place ? place() : pass.push(stream);
  ops_.embedding_forward({.ids = batch.tokens, .table = embedding_.value, .y = x});
  pass.capture(Intermediate::kEmbeddingOut, kNoLayer, x);
  std::vector<Block::Kept> kept(blocks_.size());
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    if (inputs_) inputs_->send(layer);
    pass.keep.begin_forward();
    x = blocks_[layer]->forward(pass, x, kept[layer], place_of_input(layer + 1));
    pass.keep.end_forward();
  }
  const Tensor normed = pass.push(stream);
  const Norm::Kept kept_by_norm = final_norm_.forward(pass, x, normed);
  pass.capture(Intermediate::kFinalNormOut, kNoLayer, normed);

  const int64_t T = batch.num_tokens(), num_objectives = std::ssize(passes_.objectives);
  const Tensor all_losses = losses.reshape({num_objectives + config_.mtp.depth, T});
  head_.forward_backward(pass, normed, passes_.objectives, all_losses.rows(0, num_objectives), dx);
  pass.capture(Intermediate::kLosses, kNoLayer, all_losses.rows(0, num_objectives));
  const Ahead ahead = forward_ahead(pass, normed, all_losses.rows(num_objectives, all_losses.dim(0)), predictions);
  weights_.end_application(head);
  backward_ahead(pass, ahead, dx);
  const auto gradient = [&](bool quantised) {
    return Rows(dx, quantised ? pass.keep.quantised_gradient() : RowCodes{});
  };
  Rows dstream = gradient(blocks_.back()->takes_codes(ops_));
  final_norm_.backward(pass, kept_by_norm, dx, dstream);
  weights_.end_application(after_blocks);
  for (size_t layer = blocks_.size(); layer-- > 0;) {
    pass.keep.before_backward();
    if (inputs_ && inputs_->travels(layer)) kept[layer].input = inputs_->fetch(layer);
    const bool leaves_codes = layer > 0 && blocks_[layer - 1]->takes_codes(ops_);
    blocks_[layer]->backward(pass, kept[layer], dstream, leaves_codes);
    dstream = gradient(leaves_codes);
  }
  ops_.embedding_backward({.ids = batch.tokens, .dy = dx, .dtable = embedding_.grad_to_add_to(ops_)});
  weights_.end_application(before_blocks);
  weights_.check_grads();
  pass.tell_ready(weights_.complete_from());
}

Model::Ahead Model::forward_ahead(Pass& pass, Tensor states, Tensor losses, Tensor predictions) {
  const auto depth = static_cast<size_t>(config_.mtp.depth);
  const int64_t num_objectives = std::ssize(passes_.objectives);
  NMOE_CHECK(pass.batch.ahead.size() == depth, "{} further depths, and a batch has rows of {}", depth,
             pass.batch.ahead.size());
  Ahead ahead{.kept = std::vector<PredictionModule::Kept>(depth), .gradients = {}};
  for (size_t i = 0; i < depth; ++i) {
    const auto k = static_cast<int64_t>(i);
    const AheadRows& rows = pass.batch.ahead[i];
    const Tensor gradient = ahead.gradients.emplace_back(pass.push(states.shape()));
    const PredictionModule& module = module_of(i);
    pass.keep.begin_forward();
    module.forward(pass, embedding_, rows.tokens, states, gradient, ahead.kept[i]);
    states = ahead.kept[i].out;
    head_.forward_backward_ahead(pass, states,
                                 {.targets = rows.targets,
                                  .scale = pass.scale.loss.rows(num_objectives + k, num_objectives + k + 1),
                                  .losses = losses[k],
                                  .predictions = predictions.defined() ? predictions[k] : Tensor(),
                                  .detached = config_.mtp.detach},
                                 gradient);
    pass.capture(Intermediate::kLosses, module.last_layer(), losses[k]);
    pass.keep.end_forward();
  }
  return ahead;
}

void Model::backward_ahead(Pass& pass, const Ahead& ahead, Tensor dstates) {
  for (size_t i = ahead.kept.size(); i-- > 0;) {
    pass.keep.before_backward();
    Tensor dhidden = config_.mtp.detach ? Tensor() : dstates;
    if (i > 0) dhidden = ahead.gradients[i - 1];
    module_of(i).backward(pass, ahead.kept[i], config_.mtp.detach ? nullptr : &embedding_, pass.batch.ahead[i].tokens,
                          ahead.gradients[i], dhidden);
  }
}

Tensor Model::hidden_states(const Pass& pass) {
  weights_.restart_rounding();
  const Shape stream({pass.batch.num_tokens(), config_.dim});
  const Tensor x = pass.push(stream);
  ops_.embedding_forward({.ids = pass.batch.tokens, .table = embedding_.value, .y = x});
  pass.capture(Intermediate::kEmbeddingOut, kNoLayer, x);
  for (const auto& block : blocks_) {
    const ArenaScope scope(pass.activations);
    Block::Kept kept;
    ops_.copy({.source = block->forward(pass, x, kept), .destination = x});
  }
  const Tensor normed = pass.push(stream);
  final_norm_.forward(pass, x, normed);
  pass.capture(Intermediate::kFinalNormOut, kNoLayer, normed);
  return normed;
}

void Model::forward(const Batch& batch, Arena& activations, Tensor losses, Tensor predictions, bool statistics) {
  const ArenaScope scope(activations);
  Pass pass = make_pass(batch, activations);
  pass.statistics = statistics;
  head_.losses(pass, hidden_states(pass), losses, predictions);
}

void Model::logits(const Batch& batch, Arena& activations, Tensor logits, Tensor rows) {
  const ArenaScope scope(activations);
  Pass pass = make_pass(batch, activations);
  pass.statistics = false;
  head_.logits(pass, hidden_states(pass), rows, logits);
}

void Model::scores(const Batch& batch, Arena& activations, const ScoredRows& scored) {
  const ArenaScope scope(activations);
  Pass pass = make_pass(batch, activations);
  pass.statistics = false;
  const Tensor normed = hidden_states(pass);
  const int64_t count = scored.rows.dim(0);
  for (int64_t begin = 0; begin < count; begin += kScoredAtOnce) {
    const ArenaScope of_part(activations);
    const int64_t end = std::min(begin + kScoredAtOnce, count);
    head_.scores(pass, normed,
                 {.rows = scored.rows.rows(begin, end),
                  .targets = scored.targets.rows(begin, end),
                  .losses = scored.losses.rows(begin, end),
                  .predictions = scored.predictions.rows(begin, end)});
  }
}

std::vector<StateSpec> Model::states() const {
  std::vector<StateSpec> states;
  for (const DescribedPart& part : spec_.parts()) states.push_back(part.traits.state_in(passes_.generation));
  return states;
}

Tensor Model::cached_hidden_states(const Pass& pass, const CachedRows& rows, const ModelStates& states) {
  NMOE_CHECK(moe_layers_.empty() || weights_.share().experts.count == 1,
             "cached rows on one of {} ranks that share the experts", weights_.share().experts.count);
  NMOE_CHECK(states.sizes.capacity <= max_positions_, "states of {} positions, tables of {}", states.sizes.capacity,
             max_positions_);
  const Shape stream({rows.tokens.dim(0), config_.dim});
  Tensor x = pass.push(stream), room = pass.push(stream);
  ops_.embedding_forward({.ids = rows.tokens, .table = embedding_.value, .y = x});
  pass.capture(Intermediate::kEmbeddingOut, kNoLayer, x);
  std::span<const PartStates> parts = states.parts;
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    const size_t num_parts = spec_.layers[layer].parts.size();
    blocks_[layer]->cached_forward(pass, x, room, parts.first(num_parts), rows.slots);
    parts = parts.subspan(num_parts);
  }
  const Tensor normed = pass.push(stream);
  final_norm_.forward(pass, x, normed);
  pass.capture(Intermediate::kFinalNormOut, kNoLayer, normed);
  if (cached_states_.defined()) ops_.copy({.source = normed, .destination = cached_states_.rows(0, stream[0])});
  return normed;
}

std::vector<StateSpec> Model::prediction_states() const {
  const std::vector<DescribedPart> all = spec_.prediction_layer_parts();
  std::vector<StateSpec> states;
  for (const DescribedPart& part : std::span(all).first(all.size() / modules_.size())) {
    states.push_back(part.traits.state_in(passes_.generation));
  }
  return states;
}

void Model::cached_predictions(const PredictionRows& args, const ModelStates& states, Arena& activations, Tensor wanted,
                               Tensor logits) {
  const ArenaScope scope(activations);
  const Batch batch = batch_of(args.rows);
  Pass pass = make_pass(batch, activations);
  pass.statistics = false;
  const Tensor hidden = pass.push({batch.num_tokens(), config_.dim});
  ops_.embedding_forward({.ids = args.sources, .table = args.hidden, .y = hidden});
  modules_.front()->cached_forward(pass, embedding_, args.rows.tokens, hidden, states.parts, args.rows.slots);
  if (wanted.dim(0) == 0) return;
  ops_.embedding_forward({.ids = wanted, .table = hidden, .y = args.made});
  head_.logits(pass, hidden, wanted, logits);
}

void Model::cached_logits(const CachedRows& rows, const ModelStates& states, Arena& activations, Tensor wanted,
                          Tensor logits) {
  const ArenaScope scope(activations);
  const Batch batch = batch_of(rows);
  Pass pass = make_pass(batch, activations);
  pass.statistics = false;
  const Tensor normed = cached_hidden_states(pass, rows, states);
  if (wanted.dim(0) > 0) head_.logits(pass, normed, wanted, logits);
}

void Model::cached_scores(const CachedRows& rows, const ModelStates& states, Arena& activations,
                          const ScoredRows& scored) {
  const ArenaScope scope(activations);
  const Batch batch = batch_of(rows);
  Pass pass = make_pass(batch, activations);
  pass.statistics = false;
  const Tensor normed = cached_hidden_states(pass, rows, states);
  if (scored.rows.dim(0) > 0) head_.scores(pass, normed, scored);
}

void Model::update_router_bias(Tensor grad_scale) {
  if (config_.moe.bias_rate == 0.0) return;
  for (const Moe* moe : moe_layers_) {
    ops_.router_bias_update({.counts = moe->stats().counts,
                             .bias = moe->router_bias().value,
                             .rate = config_.moe.bias_rate,
                             .grad_scale = grad_scale});
  }
}

}  // namespace nmoe
