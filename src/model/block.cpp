#include "model/block.h"

namespace nmoe {

Block::Block(const Layer& layer, WeightSet& weights)
    : layer_(layer.idx),
      mixer_norm_(weights, layer.name + "attention_norm", layer.config.norm_eps),
      mixer_(make_mixer(layer, weights)),
      first_feed_forward_(weights.index_of(layer.name + "mlp_norm")),
      feed_forward_norm_(weights, layer.name + "mlp_norm", layer.config.norm_eps),
      feed_forward_(make_feed_forward(layer, weights)) {}

template <class Mix>
Tensor Block::run_mixer(const Pass& pass, Tensor x, const Mix& mix) {
  const Tensor mixed = pass.push(x.shape());
  const Tensor normed = pass.normed.defined() ? pass.normed : pass.push(x.shape());
  const RowCodes codes = mixer_->takes_codes() ? pass.normed_codes : RowCodes{};
  mixer_norm_.forward(pass, x, normed, codes);
  mix({normed, codes}, mixed);
  pass.capture(Intermediate::kMixerOut, layer_, mixed);
  return mixed;
}

Tensor Block::run_feed_forward(const Pass& pass, Tensor mixed) {
  const Tensor out = pass.push(mixed.shape());
  const Tensor normed = pass.normed.defined() ? pass.normed : pass.push(mixed.shape());
  const RowCodes codes = feed_forward_->takes_codes() ? pass.normed_codes : RowCodes{};
  feed_forward_norm_.forward(pass, mixed, normed, codes);
  feed_forward_->forward(pass, {normed, codes}, mixed, out);
  pass.capture(Intermediate::kFeedForwardOut, layer_, out);
  return out;
}

Tensor Block::run(const Pass& pass, Tensor x) {
  const auto mix = [&](const CodedRows& normed, Tensor mixed) { mixer_->forward(pass, normed, x, mixed); };
  return run_feed_forward(pass, run_mixer(pass, x, mix));
}

Tensor Block::forward(const Pass& pass, Tensor x) {
  input_ = x;
  if (!pass.drops(Recompute::kBlocks)) return run(pass, x);
  const Tensor out = pass.push(x.shape());
  const ArenaScope scope(pass.activations);
  Pass forward_alone = pass.keeping_all();
  forward_alone.saved = RowFormat::kDevice;  // nothing waits for backward
  pass.ops.copy({.source = run(forward_alone, x), .destination = out});
  return out;
}

void Block::cached_forward(const Pass& pass, Tensor x, const LayerCache& cache, Tensor slots) {
  const ArenaScope scope(pass.activations);
  const auto mix = [&](const CodedRows& normed, Tensor mixed) {
    mixer_->cached_forward(pass, normed.rows, cache, slots, x, mixed);
  };
  const Tensor mixed = run_mixer(pass, x, mix), normed = pass.push(x.shape());
  feed_forward_norm_.forward(pass, mixed, normed);
  feed_forward_->cached_forward(pass, normed, mixed, x);
}

void Block::backward(const Pass& pass, const CodedRows& dx, bool leaves_codes) {
  const ArenaScope scope(pass.activations);
  if (!pass.drops(Recompute::kBlocks)) return run_backward(pass, dx, leaves_codes);
  run(pass.once_more(), input_);
  run_backward(pass.keeping_all(), dx, leaves_codes);
}

void Block::run_backward(const Pass& pass, const CodedRows& coded_dx, bool leaves_codes) {
  const Tensor dx = coded_dx.rows;
  const Tensor dnormed = pass.push(dx.shape());
  if (pass.normed.defined()) feed_forward_norm_.forward_again(pass, pass.normed);
  feed_forward_->backward(pass, coded_dx, dnormed);
  pass.capture(Intermediate::kFeedForwardGradient, layer_, dnormed);
  const RowCodes codes = mixer_->takes_codes() ? pass.gradient_codes : RowCodes{};
  feed_forward_norm_.backward(pass, dnormed, dx, /*accumulate=*/true, codes);
  pass.tell_ready(first_feed_forward_);  // now, when no tokens travel while the mixer works
  if (pass.normed.defined()) mixer_norm_.forward_again(pass, pass.normed);
  mixer_->backward(pass, {dx, codes}, dnormed);
  pass.capture(Intermediate::kMixerGradient, layer_, dnormed);
  mixer_norm_.backward(pass, dnormed, dx, /*accumulate=*/true, leaves_codes ? pass.gradient_codes : RowCodes{});
}

}  // namespace nmoe
