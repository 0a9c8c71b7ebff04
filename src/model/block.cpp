#include "model/block.h"

namespace nmoe {

Block::Block(std::span<const LayerPart> parts, WeightSet& weights)
    : layer_(parts.front().layer),
      weights_(weights),
      mixer_weights_{weights.index_of(parts.front().norm_name()), weights.index_of(parts.back().norm_name())},
      feed_forward_weights_{mixer_weights_.end, weights.end_of(parts.front().prefix)},
      mixer_norm_(weights, parts.front().norm_name(), parts.front().config.norm_eps),
      mixer_(make_mixer(parts.front(), weights)),
      feed_forward_norm_(weights, parts.back().norm_name(), parts.back().config.norm_eps),
      feed_forward_(make_feed_forward(parts.back(), weights)) {}

template <class Mix>
Tensor Block::run_mixer(const Pass& pass, Tensor x, Kept& kept, const Mix& mix) const {
  const Tensor mixed = pass.push(x.shape());
  const Tensor normed = pass.normed.defined() ? pass.normed : pass.push(x.shape());
  const RowCodes codes = mixer_->takes_codes() ? pass.normed_codes : RowCodes{};
  kept.mixer_norm = mixer_norm_.forward(pass, x, normed, codes);
  kept.mixer_x = normed;
  mix({normed, codes}, mixed);
  pass.capture(Intermediate::kMixerOut, layer_, mixed);
  return mixed;
}

Tensor Block::run_feed_forward(const Pass& pass, Tensor mixed, Kept& kept) const {
  const Tensor out = pass.push(mixed.shape());
  const Tensor normed = pass.normed.defined() ? pass.normed : pass.push(mixed.shape());
  const RowCodes codes = feed_forward_->takes_codes() ? pass.normed_codes : RowCodes{};
  kept.feed_forward_norm = feed_forward_norm_.forward(pass, mixed, normed, codes);
  kept.feed_forward_x = normed;
  kept.feed_forward = feed_forward_->forward(pass, {normed, codes}, mixed, out);
  pass.capture(Intermediate::kFeedForwardOut, layer_, out);
  return out;
}

Tensor Block::run(const Pass& pass, Tensor x, Kept& kept) const {
  const auto mix = [&](const CodedRows& normed, Tensor mixed) { kept.mixer = mixer_->forward(pass, normed, x, mixed); };
  return run_feed_forward(pass, run_mixer(pass, x, kept, mix), kept);
}

Tensor Block::forward(const Pass& pass, Tensor x, Kept& kept) const {
  kept = {};
  kept.input = x;
  if (pass.in_step()) {
    weights_.begin_application(mixer_weights_);
    weights_.begin_application(feed_forward_weights_);
  }
  if (!pass.drops(Recompute::kBlocks)) return run(pass, x, kept);
  const Tensor out = pass.push(x.shape());
  const ArenaScope scope(pass.activations);
  Pass forward_alone = pass.keeping_all();
  forward_alone.saved = RowFormat::kDevice;  // nothing waits for backward
  Kept dropped;
  pass.ops.copy({.source = run(forward_alone, x, dropped), .destination = out});
  return out;
}

void Block::cached_forward(const Pass& pass, Tensor x, std::span<const PartStates> states, Tensor slots) const {
  const ArenaScope scope(pass.activations);
  const auto mix = [&](const CodedRows& normed, Tensor mixed) {
    mixer_->cached_forward(pass, normed.rows, states.front(), slots, x, mixed);
  };
  Kept kept;
  const Tensor mixed = run_mixer(pass, x, kept, mix), normed = pass.push(x.shape());
  feed_forward_norm_.forward(pass, mixed, normed);
  feed_forward_->cached_forward(pass, normed, mixed, x);
}

void Block::backward(const Pass& pass, const Kept& kept, const CodedRows& dx, bool leaves_codes) const {
  const ArenaScope scope(pass.activations);
  if (!pass.drops(Recompute::kBlocks)) return run_backward(pass, kept, dx, leaves_codes);
  Kept again;
  run(pass.once_more(), kept.input, again);
  run_backward(pass.keeping_all(), again, dx, leaves_codes);
}

void Block::run_backward(const Pass& pass, const Kept& kept, const CodedRows& coded_dx, bool leaves_codes) const {
  const Tensor dx = coded_dx.rows;
  const Tensor dnormed = pass.push(dx.shape());
  if (pass.normed.defined()) feed_forward_norm_.forward_again(pass, kept.feed_forward_norm, kept.feed_forward_x);
  feed_forward_->backward(pass, kept.feed_forward, kept.feed_forward_x, coded_dx, dnormed);
  pass.capture(Intermediate::kFeedForwardGradient, layer_, dnormed);
  const RowCodes codes = mixer_->takes_codes() ? pass.gradient_codes : RowCodes{};
  feed_forward_norm_.backward(pass, kept.feed_forward_norm, dnormed, dx, /*accumulate=*/true, codes);
  weights_.end_application(feed_forward_weights_);
  pass.tell_ready(weights_.complete_from());  // now, when no tokens travel while the mixer works
  if (pass.normed.defined()) mixer_norm_.forward_again(pass, kept.mixer_norm, kept.mixer_x);
  mixer_->backward(pass, kept.mixer, kept.mixer_x, {dx, codes}, dnormed);
  pass.capture(Intermediate::kMixerGradient, layer_, dnormed);
  mixer_norm_.backward(pass, kept.mixer_norm, dnormed, dx, /*accumulate=*/true,
                       leaves_codes ? pass.gradient_codes : RowCodes{});
  weights_.end_application(mixer_weights_);
}

}  // namespace nmoe
