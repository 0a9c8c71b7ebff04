#include "model/block.h"

#include <utility>

namespace nmoe {

Block::Block(std::span<const LayerPart> parts, WeightSet& weights, std::vector<Moe*>& routing) : weights_(weights) {
  for (const LayerPart& part : parts) branches_.emplace_back(part, weights, routing);
}

Tensor Block::run(const Pass& pass, Tensor x, Kept& kept) const {
  kept.branches.resize(branches_.size());
  for (size_t i = 0; i < branches_.size(); ++i) x = branches_[i].forward(pass, x, kept.branches[i]);
  return x;
}

Tensor Block::forward(const Pass& pass, Tensor x, Kept& kept, const OutputPlace& place) const {
  kept = {.input = x, .branches = {}};
  if (pass.in_step()) {
    for (const ResidualBranch& branch : branches_) weights_.begin_application(branch.weights());
  }
  if (pass.keep.form(Site::kBlock) != KeptAs::kNothing) return run(pass, x, kept);
  Tensor out = place ? Tensor() : pass.push(x.shape());
  const ArenaScope scope(pass.activations);
  Kept dropped;
  const Tensor made = run(pass.alone(), x, dropped);
  if (place) out = place();
  pass.ops.copy({.source = made, .destination = out});
  return out;
}

void Block::cached_forward(const Pass& pass, Tensor& x, Tensor& room, std::span<const PartStates> states,
                           Tensor slots) const {
  for (size_t i = 0; i < branches_.size(); ++i) {
    branches_[i].cached_forward(pass, x, states[i], slots, room);
    std::swap(x, room);
  }
}

void Block::backward(const Pass& pass, const Kept& kept, const Rows& dx, bool leaves_codes) const {
  const ArenaScope scope(pass.activations);
  if (pass.keep.form(Site::kBlock) != KeptAs::kNothing) return run_backward(pass, kept, dx, leaves_codes);
  Kept again;
  run(pass.once_more(), kept.input, again);
  run_backward(pass.after_once_more(), again, dx, leaves_codes);
}

void Block::run_backward(const Pass& pass, const Kept& kept, const Rows& given, bool leaves_codes) const {
  Rows dx = given;
  for (size_t i = branches_.size(); i-- > 0;) {
    const ResidualBranch& branch = branches_[i];
    // Sums of gradients begin here, where no tokens travel while the mixer works.
    if (branch.is_mixer()) pass.tell_ready(weights_.complete_from());
    const bool leaves = i > 0 ? branches_[i - 1].takes_codes(pass.ops) : leaves_codes;
    branch.backward(pass, kept.branches[i], dx, leaves);
    weights_.end_application(branch.weights());
    dx = {dx.values, leaves ? pass.keep.quantised_gradient() : RowCodes{}};
  }
}

}  // namespace nmoe
