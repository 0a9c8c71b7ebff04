#include "model/model.h"

#include <utility>

#include "model/rope_table.h"

namespace nmoe {
namespace {

std::vector<std::unique_ptr<Block>> make_blocks(const ModelConfig& config, ParameterSet& parameters) {
  std::vector<std::unique_ptr<Block>> blocks;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    blocks.push_back(std::make_unique<Block>(config, parameters, layer));
  }
  return blocks;
}

void upload_reals(Ops& ops, Tensor destination, const std::vector<double>& values) {
  if (ops.stat_dtype() == DType::kF64) {
    ops.device().upload(destination, values.data());
  } else {
    const std::vector<float> narrow(values.begin(), values.end());
    ops.device().upload(destination, narrow.data());
  }
}

}  // namespace

Model::Model(const ModelConfig& config, Ops& ops, int64_t max_positions, Recompute recompute)
    : config_(config),
      ops_(ops),
      max_positions_(max_positions),
      recompute_(recompute),
      embedding_(parameters_.add({.name = "embedding",
                                  .shape = {config.vocab_size, config.dim},
                                  .group = ParameterGroup::kRest,
                                  .decay = false,
                                  .init_std = config.init.embedding_std})),
      blocks_(make_blocks(config_, parameters_)),
      final_norm_(parameters_, "final_norm", config.dim, config.norm_eps),
      head_(config.tied_head ? embedding_
                             : parameters_.add({.name = "head",
                                                .shape = {config.vocab_size, config.dim},
                                                .group = ParameterGroup::kRest,
                                                .init_std = config.init.std})) {
  for (const auto& block : blocks_) {
    if (block->moe() != nullptr) moe_layers_.push_back(block->moe());
  }
}

void Model::allocate(Arena& values, Arena& grads, Arena& state) {
  parameters_.allocate(ops_, values, grads);
  for (Moe* moe : moe_layers_) moe->allocate_stats(state);
  const int64_t dim = rope_dim(config_);
  rope_ = {.cos = state.allocate(ops_.stat_dtype(), {max_positions_, dim / 2}),
           .sin = state.allocate(ops_.stat_dtype(), {max_positions_, dim / 2})};
  if (ops_.counting()) return;  // a plan must not cost what is planned
  const RopeAngles angles = rope_angles(config_.rope, config_.yarn, dim, max_positions_);
  upload_reals(ops_, rope_.cos, angles.cos);
  upload_reals(ops_, rope_.sin, angles.sin);
}

Pass Model::make_pass(const Batch& batch, Arena& activations) const {
  NMOE_CHECK(batch.seq_len <= max_positions_, "sequences of {} positions, tables of {}", batch.seq_len, max_positions_);
  return {.ops = ops_,
          .activations = activations,
          .batch = batch,
          .rope = rope_,
          .scale = {.num_seqs = batch.num_seqs, .num_tokens = batch.num_tokens(), .loss = {}},
          .inspect = {}};
}

void Model::begin_step() {
  has_grads_ = false;
  // Those of linear layers are written by the first microbatch.
  for (const Parameter& parameter : parameters_.all()) {
    if (parameter.group == ParameterGroup::kRest && &parameter != &head_) ops_.fill({parameter.grad, 0.0});
  }
  for (const Moe* moe : moe_layers_) {
    ops_.fill({moe->stats().counts, 0.0});
    ops_.fill({moe->stats().aux_loss, 0.0});
    ops_.fill({moe->stats().entropy, 0.0});
  }
}

void Model::forward_backward(const Batch& batch, const StepScale& scale, Arena& activations, Tensor losses,
                             const Inspector& inspect) {
  const ArenaScope scope(activations);
  Pass pass = make_pass(batch, activations);
  pass.scale = scale;
  pass.inspect = inspect;
  pass.accumulate_grads = std::exchange(has_grads_, true);
  const Shape stream({batch.num_tokens(), config_.dim});

  pass.recompute = recompute_;
  const bool keeps_norms = !pass.drops(Recompute::kNorms) || pass.drops(Recompute::kBlocks);
  if (!keeps_norms) pass.normed = pass.push(stream);
  const Tensor dx = pass.push(stream);  // gradient of the residual stream, all the way down
  Tensor x = pass.push(stream);
  ops_.embedding_forward({batch.tokens, embedding_.value, x});
  pass.look("", "embedding_out", x);
  std::vector<int64_t> marks;  // activations below a mark belong to earlier layers
  for (const auto& block : blocks_) {
    marks.push_back(activations.mark());
    x = block->forward(pass, x);
  }
  marks.push_back(activations.mark());
  const Tensor normed = pass.push(stream);
  final_norm_.forward(pass, x, normed);
  pass.look("", "final_norm_out", normed);

  ops_.head_loss({.x = normed,
                  .w = head_.value,
                  .targets = batch.targets,
                  .grad_scale = scale.loss,
                  .losses = losses,
                  .dx = dx,
                  .dw = head_.grad,
                  .accumulate_dw = pass.accumulate_grads});
  pass.look("", "losses", losses);
  final_norm_.backward(pass, dx, dx);
  for (size_t layer = blocks_.size(); layer-- > 0;) {
    activations.rewind(marks[layer + 1]);
    blocks_[layer]->backward(pass, dx);
  }
  ops_.embedding_backward({batch.tokens, dx, embedding_.grad});
}

Tensor Model::hidden_states(const Pass& pass) {
  const Shape stream({pass.batch.num_tokens(), config_.dim});
  const Tensor x = pass.push(stream);
  ops_.embedding_forward({pass.batch.tokens, embedding_.value, x});
  for (const auto& block : blocks_) {
    const ArenaScope scope(pass.activations);
    ops_.copy({block->forward(pass, x), x});
  }
  const Tensor normed = pass.push(stream);
  final_norm_.forward(pass, x, normed);
  return normed;
}

void Model::forward(const Batch& batch, Arena& activations, Tensor losses, Tensor predictions, bool statistics) {
  const ArenaScope scope(activations);
  Pass pass = make_pass(batch, activations);
  pass.statistics = statistics;
  const Tensor normed = hidden_states(pass);
  ops_.head_loss({.x = normed,
                  .w = head_.value,
                  .targets = batch.targets,
                  .grad_scale = {},
                  .losses = losses,
                  .dx = {},
                  .dw = {},
                  .predictions = predictions});
}

void Model::write_logits(const Pass& pass, Tensor normed, Tensor rows, Tensor logits) {
  if (!rows.defined()) return ops_.linear_forward({normed, head_.value, logits});
  const Tensor chosen = pass.push({rows.dim(0), config_.dim});
  ops_.embedding_forward({rows, normed, chosen});
  ops_.linear_forward({chosen, head_.value, logits});
}

void Model::logits(const Batch& batch, Arena& activations, Tensor logits, Tensor rows) {
  const ArenaScope scope(activations);
  Pass pass = make_pass(batch, activations);
  pass.statistics = false;
  write_logits(pass, hidden_states(pass), rows, logits);
}

KvCache Model::make_cache(Arena& arena, int64_t num_slots, int64_t capacity) const {
  NMOE_CHECK(capacity <= max_positions_, "a cache of {} positions, tables of {}", capacity, max_positions_);
  KvCache cache{.num_slots = num_slots, .capacity = capacity};
  for (const auto& block : blocks_) {
    cache.layers.push_back(block->attention().allocate_cache(arena, ops_.compute_dtype(), num_slots, capacity));
  }
  return cache;
}

void Model::cached_logits(const CachedRows& rows, const KvCache& cache, Arena& activations, Tensor wanted,
                          Tensor logits) {
  const ArenaScope scope(activations);
  const int64_t num_rows = rows.tokens.dim(0);
  const Batch batch{
      .num_seqs = num_rows, .seq_len = 1, .tokens = rows.tokens, .targets = {}, .positions = rows.positions};
  Pass pass = make_pass(batch, activations);
  pass.statistics = false;
  const Shape stream({num_rows, config_.dim});
  const Tensor x = pass.push(stream);
  ops_.embedding_forward({rows.tokens, embedding_.value, x});
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    const ArenaScope layer_scope(activations);
    ops_.copy({blocks_[layer]->cached_forward(pass, x, cache.layers[layer], rows.slots), x});
  }
  if (wanted.dim(0) == 0) return;
  const Tensor normed = pass.push(stream);
  final_norm_.forward(pass, x, normed);
  write_logits(pass, normed, wanted, logits);
}

void Model::update_router_bias(Tensor grad_scale) {
  if (config_.moe.bias_rate == 0.0) return;
  for (const Moe* moe : moe_layers_) {
    ops_.router_bias_update({moe->stats().counts, moe->router_bias().value, config_.moe.bias_rate, grad_scale});
  }
}

}  // namespace nmoe
