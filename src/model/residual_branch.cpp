#include "model/residual_branch.h"

#include "model/parts/part_kinds.h"
#include "model/spec/names.h"

namespace nmoe {

ResidualBranch::ResidualBranch(const LayerPart& part, WeightSet& weights, std::vector<Moe*>& routing)
    : layer_(part.layer),
      is_mixer_(nmoe::is_mixer(part.spec.kind)),
      weights_{weights.index_of(part.norm_name()), weights.end_of(part_prefix(part))},
      norm_(weights, part.norm_name(), part.config.norm_eps),
      part_(make_part(part, weights, routing)) {}

Tensor ResidualBranch::forward(const Pass& pass, Tensor x, Kept& kept) const {
  const Tensor y = pass.push(x.shape());
  kept.normed = push_normed(pass, x);
  const RowCodes codes = takes_codes() ? pass.normed_codes : RowCodes{};
  kept.norm = norm_.forward(pass, x, kept.normed, codes);
  kept.part = part_->forward(pass, {kept.normed, codes}, x, y);
  pass.capture(is_mixer_ ? Intermediate::kMixerOut : Intermediate::kFeedForwardOut, layer_, y);
  return y;
}

void ResidualBranch::cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots) const {
  const ArenaScope scope(pass.activations);
  const Tensor normed = pass.push(x.shape());
  norm_.forward(pass, x, normed);
  part_->cached_forward(pass, normed, states, slots, x, x);
}

void ResidualBranch::backward(const Pass& pass, const Kept& kept, const CodedRows& coded_dx, bool leaves_codes) const {
  const ArenaScope scope(pass.activations);
  const Tensor dx = coded_dx.rows, dnormed = pass.push(dx.shape());
  if (pass.normed.defined()) norm_.forward_again(pass, kept.norm, kept.normed);
  part_->backward(pass, kept.part, kept.normed, coded_dx, dnormed);
  pass.capture(is_mixer_ ? Intermediate::kMixerGradient : Intermediate::kFeedForwardGradient, layer_, dnormed);
  norm_.backward(pass, kept.norm, dnormed, dx, /*accumulate=*/true, leaves_codes ? pass.gradient_codes : RowCodes{});
}

}  // namespace nmoe
