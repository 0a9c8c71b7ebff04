#include "model/block.h"

namespace nmoe {

int64_t layer_window(const ModelConfig& config, int64_t layer_idx) {
  const bool last = layer_idx + 1 == config.num_layers;
  const bool global = last || (layer_idx + 1) % config.attn_global_every == 0;
  return global ? 0 : config.window;
}

Block::Block(const ModelConfig& config, ParameterSet& parameters, int64_t layer_idx)
    : name_(fmt::format("layers.{}.", layer_idx)),
      attention_norm_(parameters, name_ + "attention_norm", config.dim, config.norm_eps),
      attention_(make_attention(config, parameters, name_ + "attention.", layer_window(config, layer_idx))),
      mlp_norm_(parameters, name_ + "mlp_norm", config.dim, config.norm_eps) {
  if (layer_idx < config.num_dense_layers || config.moe.num_experts == 0) {
    mlp_ = std::make_unique<Mlp>(config, parameters, name_ + "mlp.", config.dense_dim);
  } else {
    auto moe = std::make_unique<Moe>(config, parameters, name_ + "moe.");
    moe_ = moe.get();
    mlp_ = std::move(moe);
  }
}

template <class Attend>
Tensor Block::attend(const Pass& pass, Tensor x, const Attend& attention) {
  const Tensor attended = pass.push(x.shape());
  const Tensor normed = pass.normed.defined() ? pass.normed : pass.push(x.shape());
  attention_norm_.forward(pass, x, normed);
  pass.ops.copy({x, attended});
  attention(normed, attended);
  pass.look(name_, "attention_out", attended);
  return attended;
}

Tensor Block::feed_forward(const Pass& pass, Tensor attended) {
  const Tensor out = pass.push(attended.shape());
  const Tensor mlp_in = pass.normed.defined() ? pass.normed : pass.push(attended.shape());
  mlp_norm_.forward(pass, attended, mlp_in);
  pass.ops.copy({attended, out});
  mlp_->forward(pass, mlp_in, out);
  pass.look(name_, "mlp_out", out);
  return out;
}

Tensor Block::run(const Pass& pass, Tensor x) {
  const auto attention = [&](Tensor normed, Tensor attended) { attention_->forward(pass, normed, attended); };
  return feed_forward(pass, attend(pass, x, attention));
}

Tensor Block::forward(const Pass& pass, Tensor x) {
  input_ = x;
  if (!pass.drops(Recompute::kBlocks)) return run(pass, x);
  const Tensor out = pass.push(x.shape());
  const ArenaScope scope(pass.activations);
  pass.ops.copy({run(pass.keeping_all(), x), out});
  return out;
}

Tensor Block::cached_forward(const Pass& pass, Tensor x, const LayerCache& cache, Tensor slots) {
  const auto attention = [&](Tensor normed, Tensor attended) {
    attention_->cached_forward(pass, normed, cache, slots, attended);
  };
  return feed_forward(pass, attend(pass, x, attention));
}

void Block::backward(const Pass& pass, Tensor dx) {
  const ArenaScope scope(pass.activations);
  if (!pass.drops(Recompute::kBlocks)) return run_backward(pass, dx);
  run(pass.once_more(), input_);
  run_backward(pass.keeping_all(), dx);
}

void Block::run_backward(const Pass& pass, Tensor dx) {
  const Tensor dnormed = pass.push(dx.shape());
  if (pass.normed.defined()) mlp_norm_.forward_again(pass, pass.normed);
  mlp_->backward(pass, dx, dnormed);
  pass.look(name_, "mlp_gradient", dnormed);
  mlp_norm_.backward(pass, dnormed, dx, /*accumulate=*/true);
  if (pass.normed.defined()) attention_norm_.forward_again(pass, pass.normed);
  attention_->backward(pass, dx, dnormed);
  pass.look(name_, "attention_gradient", dnormed);
  attention_norm_.backward(pass, dnormed, dx, /*accumulate=*/true);
}

}  // namespace nmoe
