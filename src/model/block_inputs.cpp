#include "model/block_inputs.h"

#include "ops/ops.h"

namespace nmoe {

BlockInputs::BlockInputs(Device& device, Arena& host, std::span<const KeepOptions> layers)
    : device_(device), host_(host), turns_(layers.size()) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const Recompute before = layer == 0 ? Recompute::kBlocks : layers[layer - 1].recompute;
    if (input_travels(before, layers[layer].recompute)) turns_[layer] = num_turns_++;
  }
  for (Slot& slot : slots_) slot.copied = device_.make_event(Lane::kCopy);
}

void BlockInputs::begin(Arena& activations, DType dtype, const Shape& stream) {
  if (num_turns_ == 0) return;
  for (Slot& slot : slots_) slot.memory = activations.allocate(dtype, stream);
  host_.rewind(0);
  waiting_.clear();
  for (size_t turn = 0; waits_in_host(turn); ++turn) waiting_.push_back(host_.allocate(dtype, stream));
}

void BlockInputs::copy(size_t turn, Tensor source, Tensor destination) {
  device_.order(Lane::kCompute, Lane::kCopy);
  device_.ops(Lane::kCopy).copy({.source = source, .destination = destination});
  slot(turn).copied->record();
}

Tensor BlockInputs::place(size_t layer) {
  const size_t turn = turns_[layer].value();
  if (turn >= slots_.size()) slot(turn).copied->before(Lane::kCompute);  // what was there has been sent
  return slot(turn).memory;
}

void BlockInputs::send(size_t layer) {
  if (!travels(layer) || !waits_in_host(*turns_[layer])) return;
  const size_t turn = *turns_[layer];
  copy(turn, slot(turn).memory, waiting_[turn]);
}

Tensor BlockInputs::fetch(size_t layer) {
  const size_t turn = turns_[layer].value();
  if (waits_in_host(turn)) slot(turn).copied->before(Lane::kCompute);
  // The next one takes the place of the one before, whose backward is enqueued.
  if (turn > 0 && waits_in_host(turn - 1)) copy(turn - 1, waiting_[turn - 1], slot(turn - 1).memory);
  return slot(turn).memory;
}

}  // namespace nmoe
