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
  kept.normed = pass.keep.put(Site::kNormOutput, x.shape());
  Rows normed = pass.keep.with_values(kept.normed);
  if (takes_codes(pass.ops)) normed.quantised = pass.keep.quantised_norm();
  kept.norm = norm_.forward(pass, x, normed);
  kept.part = part_->forward(pass, normed, x, y);
  pass.capture(is_mixer_ ? Intermediate::kMixerOut : Intermediate::kFeedForwardOut, layer_, y);
  return y;
}

void ResidualBranch::cached_forward(const Pass& pass, Tensor x, const PartStates& states, Tensor slots,
                                    Tensor y) const {
  const ArenaScope scope(pass.activations);
  const Tensor normed = pass.push(x.shape());
  norm_.forward(pass, x, normed);
  part_->cached_forward(pass, normed, states, slots, x, y);
  pass.capture(is_mixer_ ? Intermediate::kMixerOut : Intermediate::kFeedForwardOut, layer_, y);
}

void ResidualBranch::backward(const Pass& pass, const Kept& kept, const Rows& dx, bool leaves_codes) const {
  const ArenaScope scope(pass.activations);
  const Tensor dnormed = pass.push(dx.tensor().shape()), normed = pass.keep.get(kept.normed).tensor();
  if (!kept.normed.wait()) norm_.forward_again(pass, kept.norm, normed);
  part_->backward(pass, kept.part, normed, dx, dnormed);
  pass.capture(is_mixer_ ? Intermediate::kMixerGradient : Intermediate::kFeedForwardGradient, layer_, dnormed);
  const RowCodes quantised = leaves_codes ? pass.keep.quantised_gradient() : RowCodes{};
  norm_.backward(pass, kept.norm, dnormed, {dx.values, quantised}, /*accumulate=*/true);
}

}  // namespace nmoe
